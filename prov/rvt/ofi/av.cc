// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Insertion in all its forms, lookup, removal. fi_av(3).
#include "ofi/av.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "ofi/address_format.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

using util::Result;
using util::SockAddr;

constexpr std::uint64_t kInsertFlags = FI_MORE | FI_SYNC_ERR | kFirewallAddr;

/// One insertion call: numbers and errors go where the caller asked for them.
class Insertion {
  public:
    Insertion(Av& av, fi_addr_t* numbers, std::uint64_t flags, void* context) noexcept
        : av_(av), numbers_(numbers), context_(context) {
        if ((flags & FI_SYNC_ERR) != 0) {
            errors_ = static_cast<int*>(context);
        }
    }

    /// Returns: 0, or why nothing can be inserted by this call.
    static int check(const Av& av, std::uint64_t flags, const void* context) noexcept {
        if ((flags & ~kInsertFlags) != 0) {
            return -FI_EBADFLAGS;
        }
        if (av.is_async && av.eq == nullptr) {
            return -FI_ENOEQ;
        }
        const bool wants_errors = (flags & FI_SYNC_ERR) != 0;
        return wants_errors && (av.is_async || context == nullptr) ? -FI_EINVAL : 0;
    }

    void add(const Result<SockAddr>& address) {
        Result<std::uint64_t> number =
            address.is_ok() ? check_and_insert(address.value()) : address.status();
        if (number.is_ok()) {
            ++inserted_;
        } else {
            RVT_WARN(kAv, "cannot insert address %zu: %s", done_, strerrordesc_np(number.error()));
        }
        if (numbers_ != nullptr) {
            numbers_[done_] = number.is_ok() ? number.value() : std::uint64_t{FI_ADDR_NOTAVAIL};
        }
        if (errors_ != nullptr) {
            errors_[done_] = number.error();
        }
        if (av_.is_async && !number.is_ok()) {
            report_error(number.error());
        }
        ++done_;
    }

    /// Returns: what the call returns: the number inserted, or 0 where an event tells it.
    int finish() {
        if (!av_.is_async) {
            return static_cast<int>(inserted_);
        }
        const fi_eq_entry event{&av_.handle.fid, context_, inserted_};
        av_.eq->push(FI_AV_COMPLETE, &event, sizeof event);
        return 0;
    }

  private:
    Result<std::uint64_t> check_and_insert(const SockAddr& address) {
        if (address.port == 0) {
            return EINVAL;
        }
        return av_.addresses.insert(address);
    }

    void report_error(int error) {
        fi_eq_err_entry event{};
        event.fid = &av_.handle.fid;
        event.context = context_;
        event.data = done_;
        event.err = error;
        event.prov_errno = error;
        av_.eq->push_error(event);
    }

    Av& av_;
    fi_addr_t* numbers_;
    void* context_;
    int* errors_ = nullptr;
    std::size_t done_ = 0;
    std::size_t inserted_ = 0;
};

const void* element(const void* addresses, std::size_t i, std::uint32_t format) noexcept {
    if (format == FI_ADDR_STR) {
        return static_cast<const char* const*>(addresses)[i];
    }
    return static_cast<const char*>(addresses) + i * formatted_stride(format);
}

int av_insert(fid_av* self, const void* addresses, std::size_t count, fi_addr_t* numbers,
              std::uint64_t flags, void* context) noexcept {
    return entry([&]() -> int {
        Av& av = Av::from(self);
        const int refused = Insertion::check(av, flags, context);
        if (refused != 0) {
            return refused;
        }
        if (addresses == nullptr && count != 0) {
            return -FI_EINVAL;
        }
        Insertion insertion(av, numbers, flags, context);
        for (std::size_t i = 0; i < count; ++i) {
            const void* one = element(addresses, i, av.domain->addr_format);
            insertion.add(one != nullptr ? read_formatted_address(av.domain->addr_format, one)
                                         : Result<SockAddr>(EINVAL));
        }
        return insertion.finish();
    });
}

Result<SockAddr> look_up(const char* node, const char* service, int family) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* all = nullptr;
    if (getaddrinfo(node, service, &hints, &all) != 0) {
        return EADDRNOTAVAIL;
    }
    Result<SockAddr> address = SockAddr::from(all->ai_addr, all->ai_addrlen);
    freeaddrinfo(all);
    return address;
}

/// A host name or address, and a port. Unlike fi_getinfo's, the node may be anywhere.
Result<SockAddr> resolve(const char* node, const char* service, std::uint32_t format) {
    if (SockAddr::is_formatted(node)) {
        return service == nullptr ? SockAddr::from_string(node) : Result<SockAddr>(EINVAL);
    }
    if (is_beyond_ports(service)) {
        return EINVAL;
    }
    const int family = format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_INET;
    const Result<SockAddr> address = look_up(node, service, family);
    // Text is of either family, IPv4 first, as in fi_getinfo.
    return address.is_ok() || format != FI_ADDR_STR ? address : look_up(node, service, AF_INET6);
}

int av_insertsvc(fid_av* self, const char* node, const char* service, fi_addr_t* number,
                 std::uint64_t flags, void* context) noexcept {
    return entry([&]() -> int {
        Av& av = Av::from(self);
        const int refused = Insertion::check(av, flags, context);
        if (refused != 0) {
            return refused;
        }
        if (node == nullptr) {
            return -FI_EINVAL;
        }
        Insertion insertion(av, number, flags, context);
        insertion.add(resolve(node, service, av.domain->addr_format));
        return insertion.finish();
    });
}

/// A row of names, as fi_av_insertsym counts them: "node07" is followed by "node08". One alone need
/// not end in a number.
struct Counted {
    std::string stem;
    unsigned long first = 0;
    std::size_t digits = 0;
    std::size_t count = 0;

    Counted(const std::string& name, std::size_t many) : count(many) {
        std::size_t end = name.size();
        while (end > 0 && std::isdigit(static_cast<unsigned char>(name[end - 1])) != 0) {
            --end;
        }
        stem = name.substr(0, end);
        digits = name.size() - end;
        first = digits != 0 ? std::strtoul(name.c_str() + end, nullptr, 10) : 0;
    }
    [[nodiscard]] bool is_usable() const noexcept { return count <= 1 || digits != 0; }
    [[nodiscard]] std::string at(std::size_t i) const {
        if (digits == 0) {
            return stem;
        }
        std::string number = std::to_string(first + i);
        if (number.size() < digits) {
            number.insert(0, digits - number.size(), '0');
        }
        return stem + number;
    }
};

/// The nodes of fi_av_insertsym: a row of addresses where the first is one, else of names.
class NodeRow {
  public:
    NodeRow(const std::string& first, std::size_t count) : names_(first, count) {
        const std::size_t end = std::min(first.find('%'), first.size());
        const std::string host = first.substr(0, end);
        scope_ = first.substr(end);
        for (const int family : {AF_INET, AF_INET6}) {
            if (inet_pton(family, host.c_str(), ip_.data()) == 1) {
                family_ = family;
                return;
            }
        }
    }
    [[nodiscard]] bool is_usable() const noexcept {
        return family_ != AF_UNSPEC || names_.is_usable();
    }
    [[nodiscard]] std::string at(std::size_t i) const {
        return family_ == AF_UNSPEC ? names_.at(i) : address_at(i);
    }

  private:
    [[nodiscard]] std::string address_at(std::size_t i) const {
        std::array<std::uint8_t, sizeof(in6_addr)> ip = ip_;
        std::size_t carry = i;
        for (std::size_t at = family_ == AF_INET ? sizeof(in_addr) : ip.size(); at-- > 0;) {
            carry += ip[at];
            ip[at] = static_cast<std::uint8_t>(carry);
            carry >>= 8;
        }
        std::array<char, INET6_ADDRSTRLEN> text{};
        inet_ntop(family_, ip.data(), text.data(), text.size());
        return text.data() + scope_;
    }

    Counted names_;
    int family_ = AF_UNSPEC;  // of an address
    std::array<std::uint8_t, sizeof(in6_addr)> ip_{};
    std::string scope_;  // from '%' on
};

int av_insertsym(fid_av* self, const char* node, std::size_t nodes, const char* service,
                 std::size_t services, fi_addr_t* numbers, std::uint64_t flags,
                 void* context) noexcept {
    return entry([&]() -> int {
        Av& av = Av::from(self);
        const int refused = Insertion::check(av, flags, context);
        if (refused != 0) {
            return refused;
        }
        if (node == nullptr || service == nullptr) {
            return -FI_EINVAL;
        }
        const NodeRow node_names(node, nodes);
        const Counted service_names(service, services);
        if (!node_names.is_usable() || !service_names.is_usable()) {
            return -FI_EINVAL;
        }
        Insertion insertion(av, numbers, flags, context);
        for (std::size_t i = 0; i < nodes; ++i) {
            const std::string node_name = node_names.at(i);
            for (std::size_t j = 0; j < services; ++j) {
                insertion.add(resolve(node_name.c_str(), service_names.at(j).c_str(),
                                      av.domain->addr_format));
            }
        }
        return insertion.finish();
    });
}

/// The manual gives a number that is not in use the error of a bad argument.
int av_remove(fid_av* self, fi_addr_t* numbers, std::size_t count, std::uint64_t flags) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (numbers == nullptr && count != 0) {
        return -FI_EINVAL;
    }
    return entry([&]() -> int {
        util::Status result;
        for (std::size_t i = 0; i < count; ++i) {
            const util::Status removed = Av::from(self).addresses.remove(numbers[i]);
            result = result.is_ok() ? removed : result;
        }
        return result.error() == ENOENT ? -FI_EINVAL : to_fi(result);
    });
}

int av_lookup(fid_av* self, fi_addr_t number, void* address, std::size_t* length) noexcept {
    return entry([&]() -> int {
        Av& av = Av::from(self);
        const SockAddr* found = av.addresses.at(number);
        if (found == nullptr || length == nullptr) {
            return -FI_EINVAL;
        }
        // As with getname, a buffer that is too small gets what fits; the length says what is
        // needed.
        write_formatted_address(av.domain->addr_format, *found, address, length);
        return 0;
    });
}

const char* av_straddr(fid_av* self, const void* address, char* buffer,
                       std::size_t* length) noexcept {
    std::string text = "?";
    try {
        const Result<SockAddr> read =
            read_formatted_address(Av::from(self).domain->addr_format, address);
        if (read.is_ok()) {
            text = to_fi_text(read.value());
        }
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
    if (buffer != nullptr && *length > 0) {
        const std::size_t kept = text.copy(buffer, *length - 1);
        buffer[kept] = '\0';
    }
    *length = text.size() + 1;
    return buffer;
}

int av_close(fid* self) noexcept {
    Av& av = Av::from(self);
    if (av.users.is_any()) {
        return -FI_EBUSY;
    }
    if (av.eq != nullptr) {
        av.eq->users.drop();
    }
    av.domain->users.drop();
    delete &av;
    return 0;
}

int av_bind(fid* self, fid* other, std::uint64_t flags) noexcept {
    Av& av = Av::from(self);
    if (other->fclass != FI_CLASS_EQ) {
        return -FI_EINVAL;
    }
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (av.eq != nullptr) {
        return -FI_EALREADY;
    }
    av.eq = &Eq::from(other);
    av.eq->users.add();
    return 0;
}

fi_ops av_fid_ops = fid_ops(av_close, av_bind);

fi_ops_av av_ops = {
    .size = offsetof(
        fi_ops_av, av_set),  // later entries: collectives and authorization keys, which we have not
    .insert = av_insert,
    .insertsvc = av_insertsvc,
    .insertsym = av_insertsym,
    .remove = av_remove,
    .lookup = av_lookup,
    .straddr = av_straddr,
    .av_set = nullptr,
};

/// Names the attribute that cannot be honoured, or nullptr.
const char* refused_attribute(const fi_av_attr& attr) noexcept {
    if (attr.type != FI_AV_UNSPEC && attr.type != FI_AV_MAP && attr.type != FI_AV_TABLE) {
        return "type";
    }
    if (attr.rx_ctx_bits != 0) {
        return "rx_ctx_bits (no scalable endpoints)";
    }
    if (attr.name != nullptr) {
        return "name (no FI_SHARED_AV)";
    }
    if ((attr.flags & ~std::uint64_t{FI_EVENT | FI_SYMMETRIC}) != 0) {
        return "flags";
    }
    return nullptr;
}

}  // namespace

int av_open(fid_domain* domain, fi_av_attr* attr, fid_av** av, void* context) noexcept {
    return entry([&]() -> int {
        if (attr == nullptr) {
            return -FI_EINVAL;
        }
        const char* refused = refused_attribute(*attr);
        if (refused != nullptr) {
            RVT_WARN(kAv, "cannot open av: %s is not supported", refused);
            return (attr->flags & ~std::uint64_t{FI_EVENT | FI_SYMMETRIC}) != 0 ? -FI_EBADFLAGS
                   : attr->name != nullptr                                      ? -FI_ENOSYS
                                                                                : -FI_EINVAL;
        }
        auto made = std::make_unique<Av>();
        made->domain = &Domain::from(domain);
        if (attr->type == FI_AV_UNSPEC) {
            attr->type =
                made->domain->av_type != FI_AV_UNSPEC ? made->domain->av_type : FI_AV_TABLE;
        }
        made->is_async = (attr->flags & FI_EVENT) != 0;
        made->handle.fid = {FI_CLASS_AV, context, &av_fid_ops};
        made->handle.ops = &av_ops;
        made->domain->users.add();
        *av = &made.release()->handle;
        return 0;
    });
}

}  // namespace rvt::ofi
