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
 * Flags of fi_mr_reg(3), fi_mr_regv and fi_mr_regattr, in the range that libfabric leaves to
 * providers. As IBV_ACCESS_ON_DEMAND and IBV_ACCESS_RELAXED_ORDERING of
 * ibv_reg_mr(3).
 *
 * The region's pages are not pinned: a NIC brings them in as it comes to them, and follows when
 * they change. Without a NIC it is so with all regions; a NIC that has no such regions refuses with
 * -FI_EOPNOTSUPP. Of no account for memory of devices.
 */
#define FI_RVT_MR_ON_DEMAND (1ULL << 60)
/*
 * What a NIC writes into the region may arrive in any order before the completion: nobody looks for
 * the last byte to know that all are there. Only a hint, which has no effect without a NIC, and
 * with one that does not know of it.
 */
#define FI_RVT_MR_RELAXED_ORDERING (1ULL << 61)

#ifdef __cplusplus
}
#endif

#endif
