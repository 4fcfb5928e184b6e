/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What the rvt provider offers beyond libfabric. Open a table with fi_open_ops(3):
 *
 *     struct fi_rvt_ops_ep *ops;
 *     fi_open_ops(&ep->fid, FI_RVT_EP_OPS, 0, (void **)&ops, NULL);
 *
 * Tables grow at their ends; `size` says which entries there are.
 */
#ifndef FI_EXT_RVT_H
#define FI_EXT_RVT_H

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Regions of dma-bufs, fi_mr(3), for headers older than 1.20. With them, mr_iov of struct
 * fi_mr_attr takes the address of a struct fi_mr_dmabuf, cast; iov_count is 1.
 */
#ifndef FI_MR_DMABUF
#define FI_MR_DMABUF (1ULL << 40)
struct fi_mr_dmabuf {
    int fd;
    uint64_t offset;
    size_t len;
    void* base_addr;
};
#endif

#define FI_RVT_EP_OPS "rvt_ep_ops_1"

struct fi_rvt_ops_ep {
    size_t size;
    /*
     * Says in words how a peer is reached and why other ways are not used. The text is cut to *len
     * bytes, its terminator included; *len becomes what the whole text needs.
     * Returns 0, or -FI_EOPBADSTATE before the endpoint is enabled.
     */
    int (*describe_peer)(struct fid_ep* ep, fi_addr_t peer, char* buf, size_t* len);
};

/*
 * Flags of fi_mr_reg(3), fi_mr_regv and fi_mr_regattr, and of reregister below, in the range that
 * libfabric leaves to providers. As IBV_ACCESS_ON_DEMAND and IBV_ACCESS_RELAXED_ORDERING of
 * ibv_reg_mr(3).
 *
 * The region's pages are not pinned: a NIC brings them in as it comes to them, and follows when
 * they change. Without a NIC it is so with all regions; in the domain of a NIC that has no such
 * regions it is refused with -FI_EOPNOTSUPP. Of no account for memory of devices, and where a NIC
 * carries the flows of FI_EP_RDM endpoints: it pins what peers reach through it.
 */
#define FI_RVT_MR_ON_DEMAND (1ULL << 60)
/*
 * What a NIC writes into the region may arrive in any order before the completion: nobody looks for
 * the last byte to know that all are there. Only a hint, which has an effect in the domain of a NIC
 * that knows of it.
 */
#define FI_RVT_MR_RELAXED_ORDERING (1ULL << 61)

/* Of a region, as of any fid_mr. */
#define FI_RVT_MR_OPS "rvt_mr_ops_1"

/* What will be done with memory: as IBV_ADVISE_MR_ADVICE_* of ibv_advise_mr(3). */
enum fi_rvt_mr_advice {
    FI_RVT_MR_PREFETCH,          /* it will be read */
    FI_RVT_MR_PREFETCH_WRITE,    /* and written */
    FI_RVT_MR_PREFETCH_NO_FAULT, /* read, but pages that the CPU has not are left alone */
};

struct fi_rvt_ops_mr {
    size_t size;
    /*
     * Gives a region other buffers, other access, or both, in its place: cheaper than to close it
     * and to register anew, and peers that know its key need not be told of another one. While it
     * runs, accesses of peers may fail; when it returns, nobody uses the former buffers any more.
     * Where a NIC carries the flow of a peer, none of its accesses may begin before it has made
     * progress: one by the former registration ends the flow.
     * No operation of this process's own may be under way with the region's descriptor.
     *
     * The key stays, but in the domain of a NIC, where it may be another: ask fi_mr_key(3) again.
     * In domains with FI_MR_VIRT_ADDR peers name the buffers by their new addresses.
     *
     * mr      Ordinary memory: not of a device, not of a dma-buf. Counters and endpoints that are
     *         bound to it stay so.
     * iov     count buffers, copied before return; the memory stays the caller's. NULL with a count
     *         of 0: those that it has.
     * access  FI_SEND ... FI_REMOTE_WRITE, as for fi_mr_reg(3): what is allowed from now on.
     * flags   FI_RVT_MR_ON_DEMAND and FI_RVT_MR_RELAXED_ORDERING, or 0: what holds from now on.
     *
     * Returns 0; -FI_EINVAL for buffers or access that fi_mr_reg(3) refuses; -FI_EBADFLAGS;
     * -FI_EOPNOTSUPP for memory of a device, and what the NIC does not have; -FI_EBUSY when a peer
     * has used the buffers for 5 seconds; -FI_ENOENT for a region whose fi_close(3) has begun;
     * -FI_ENOMEM and -FI_ENOSPC of a NIC. The region is what it was then, and can be used. After
     * -ENOTRECOVERABLE, when a NIC has lost it, only fi_close(3) is left.
     *
     * Threads: any; one call at a time for each region, and not beside its fi_close(3).
     * Source: ibv_rereg_mr(3).
     */
    int (*reregister)(struct fid_mr* mr, const struct iovec* iov, size_t count, uint64_t access,
                      uint64_t flags);
    /*
     * Has len bytes of a region, from its byte offset on, ready for what will be done with them:
     * pages in memory, and of a region on demand also where the NIC looks for them. Nothing depends
     * on it. Without a NIC it is the kernel that brings in pages; memory of a device needs nothing.
     *
     * Returns 0; -FI_EINVAL for a part that is not within the region, or no advice; -FI_EFAULT for
     * memory that is not there, or not to be written; -FI_EOPNOTSUPP for a NIC that has no regions
     * on demand; what else a NIC answers, which refuses advice of regions that are pinned.
     *
     * Threads: any, beside transfers; not beside reregister and fi_close(3) of the same region.
     * Source: ibv_advise_mr(3).
     */
    int (*advise)(struct fid_mr* mr, enum fi_rvt_mr_advice advice, uint64_t offset, uint64_t len);
};

#ifdef __cplusplus
}
#endif

#endif
