// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Writing and reading key entries, and giving keys out so that they are hard to guess.
#include "core/key_table.h"

#include "core/reader_pins.h"
#include "util/cpu.h"

#include <bit>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <sys/random.h>

namespace rvt::core {
namespace {

constexpr std::uint32_t kNoPlace = 0;
constexpr std::uint32_t kRequestBits =
    bits(Access::kLocalWrite | Access::kRemoteWrite | Access::kRemoteRead | Access::kRemoteAtomic |
         Access::kMwBind | Access::kFlushGlobal | Access::kFlushPersistent);
constexpr std::uint32_t kRemoteBits =
    bits(Access::kRemoteWrite | Access::kRemoteRead | Access::kRemoteAtomic);

// Of a region without any of these nothing leads other processes to its memory: their look-ups ask
// for rights, and what a RegionMemory stands for, messages may name.
constexpr std::uint32_t kReachBits =
    kRemoteBits | bits(Access::kMwBind | Access::kFlushGlobal | Access::kFlushPersistent) |
    KeyEntry::kIndirect | KeyEntry::kWindow;

std::uint64_t random_word() noexcept {
    std::uint64_t word = 0;
    if (getrandom(&word, sizeof word, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof word)) {
        word = util::cpu_ticks() * 0x9e3779b97f4a7c15u;  // early boot: no entropy yet
    }
    return word;
}

std::uint64_t mix(std::uint64_t x) noexcept {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/// Changes an entry so that no reader believes a mixture. The caller is the only writer.
class EntryWrite {
  public:
    explicit EntryWrite(KeyEntry& entry) noexcept
        // relaxed: the owner's lock orders writers.
        : entry_(entry), seq_(entry.seq.load(std::memory_order_relaxed)) {
        // relaxed: each field below is a release store, so no reader sees one without this.
        entry_.seq.store(seq_ + 1, std::memory_order_relaxed);
    }
    ~EntryWrite() {
        // release: pairs with the acquire of seq in KeyView::lookup().
        entry_.seq.store(seq_ + 2, std::memory_order_release);
    }
    EntryWrite(const EntryWrite&) = delete;
    EntryWrite& operator=(const EntryWrite&) = delete;

    template <class T>
    void set(std::atomic<T>& field, T value) noexcept {
        // release: pairs with the acquire of the field; who sees it sees that seq is odd.
        field.store(value, std::memory_order_release);
    }

  private:
    KeyEntry& entry_;
    const std::uint32_t seq_;
};

/// The fields a lookup needs, read one by one between two readings of seq.
struct Snapshot {
    std::uint32_t key, access, pd, mapping, version;
    std::uint64_t addr, length, iova, mapping_offset, user_key;
};

/// Returns: false when the entry was being changed. The key asked for is then not live: either it
///          is being made, and nobody can know it yet, or it is on its way out.
bool read_entry(const KeyEntry& e, Snapshot& s) noexcept {
    // acquire: seq pairs with the release in ~EntryWrite, each field with that in EntryWrite::set.
    constexpr auto kOrder = std::memory_order_acquire;
    const std::uint32_t before = e.seq.load(kOrder);
    s = {.key = e.key.load(kOrder),
         .access = e.access.load(kOrder),
         .pd = e.pd.load(kOrder),
         .mapping = e.mapping.load(kOrder),
         .version = before,
         .addr = e.addr.load(kOrder),
         .length = e.length.load(kOrder),
         .iova = e.iova.load(kOrder),
         .mapping_offset = e.mapping_offset.load(kOrder),
         .user_key = e.user_key.load(kOrder)};
    // relaxed: the acquire loads above keep this one behind them.
    return (before & 1) == 0 && e.seq.load(std::memory_order_relaxed) == before;
}

void fill(EntryWrite& write, KeyEntry& e, const KeyAttr& attr) noexcept {
    const bool zero_based = has_any(attr.access, Access::kZeroBased);
    write.set(e.pd, attr.pd);
    write.set(e.addr, attr.addr);
    write.set(e.length, attr.length);
    write.set(e.iova, zero_based ? std::uint64_t{0} : attr.iova);
    write.set(e.mapping, attr.mapping);
    write.set(e.mapping_offset, attr.mapping_offset);
    write.set(e.access, bits(attr.access) | KeyEntry::kLive |
                            (attr.indirect ? KeyEntry::kIndirect : 0u) |
                            (attr.is_window ? KeyEntry::kWindow : 0u));
}

bool wraps(std::uint64_t first, std::uint64_t length) noexcept {
    return length != 0 && first + (length - 1) < first;
}

bool is_live(const KeyEntry& e, std::uint32_t key) noexcept {
    // relaxed: called by the only writer.
    return e.key.load(std::memory_order_relaxed) == key &&
           (e.access.load(std::memory_order_relaxed) & KeyEntry::kLive) != 0;
}

/// Whether nobody but its owner has ever been able to use what a live key stands for.
bool is_out_of_reach(const KeyEntry& e) noexcept {
    // relaxed: called by the only writer.
    const std::uint32_t access = e.access.load(std::memory_order_relaxed);
    return (access & KeyEntry::kLive) != 0 && (access & kReachBits) == 0;
}

/// Also of one that was invalidated: until it is removed it can be bound again.
bool is_window(const KeyEntry& e) noexcept {
    // relaxed: called by the only writer.
    return (e.access.load(std::memory_order_relaxed) & KeyEntry::kWindow) != 0;
}

/// Waits until nobody uses what a key stood for that fails now. Returns: false when the time is
/// over.
bool wait_unused(std::uint32_t key, int timeout_ms, const PeerMarks& marks) noexcept {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point end = Clock::now() + std::chrono::milliseconds(timeout_ms);
    ReaderWait readers;
    while (!readers.readers_are_gone() ||
           (marks.are_gone != nullptr && !marks.are_gone(marks.context, key))) {
        if (timeout_ms >= 0 && Clock::now() >= end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

}  // namespace

// ---- KeyView ----

util::Result<KeyView> KeyView::attach(const void* block, std::size_t bytes) noexcept {
    KeyTableHeader header{};
    if (bytes < sizeof header) {
        return EINVAL;
    }
    std::memcpy(&header, block, sizeof header);  // once: another process may own the block
    const bool sane = header.magic == KeyTableHeader::kMagic &&
                      header.index_bits >= KeyFormat::kMinIndexBits &&
                      header.index_bits <= KeyFormat::kMaxIndexBits &&
                      header.index_mask < (1u << header.index_bits) &&
                      bytes >= (std::size_t{1} << header.index_bits) * sizeof(KeyEntry);
    if (!sane) {
        return EINVAL;
    }
    KeyView view;
    view.entries_ = static_cast<const KeyEntry*>(block);
    view.format_ = {.index_bits = header.index_bits, .index_mask = header.index_mask};
    return view;
}

KeyHit KeyView::lookup(const KeyQuery& query) const noexcept {
    if (query.length == 0) {
        return {.verdict = KeyVerdict::kOk};
    }
    const std::uint32_t place = format_.place_of(query.key);
    Snapshot s{};
    if (place == kNoPlace || !read_entry(entries_[place], s) || s.key != query.key ||
        (s.access & KeyEntry::kLive) == 0 || s.user_key != query.user_key.value_or(s.user_key)) {
        return {.verdict = KeyVerdict::kNoSuchKey};
    }
    if (s.pd != query.pd) {
        return {.verdict = KeyVerdict::kWrongPd};
    }
    const std::uint32_t wanted = bits(query.access) & kRequestBits;
    if ((s.access & wanted) != wanted) {
        return {.verdict = KeyVerdict::kNoAccess};
    }
    // Differences only: a sum could pass the end of the address space and look small.
    const std::uint64_t offset = query.addr - s.iova;
    if (query.addr < s.iova || offset > s.length || query.length > s.length - offset) {
        return {.verdict = KeyVerdict::kOutOfBounds};
    }
    return {.verdict = KeyVerdict::kOk,
            .indirect = (s.access & KeyEntry::kIndirect) != 0,
            .mapping = s.mapping,
            .version = s.version,
            .base = s.addr,
            .offset = offset,
            .mapping_offset = s.mapping_offset + offset};
}

util::Result<KeyRegion> KeyView::region(std::uint32_t key, std::uint32_t pd,
                                        Access access) const noexcept {
    const std::uint32_t place = format_.place_of(key);
    Snapshot s{};
    if (place == kNoPlace || !read_entry(entries_[place], s) || s.key != key ||
        (s.access & KeyEntry::kLive) == 0) {
        return ENOENT;
    }
    const std::uint32_t wanted = bits(access) & kRequestBits;
    if (s.pd != pd || (s.access & wanted) != wanted) {
        return EACCES;
    }
    return KeyRegion{
        .base = s.addr, .length = s.length, .indirect = (s.access & KeyEntry::kIndirect) != 0};
}

util::Result<Access> KeyView::access_of(std::uint32_t key, std::uint32_t pd) const noexcept {
    const std::uint32_t place = format_.place_of(key);
    Snapshot s{};
    if (place == kNoPlace || !read_entry(entries_[place], s) || s.key != key ||
        (s.access & KeyEntry::kLive) == 0) {
        return ENOENT;
    }
    if (s.pd != pd) {
        return EACCES;
    }
    return static_cast<Access>(s.access & (kRequestBits | bits(Access::kZeroBased)));
}

std::uint32_t KeyView::version_of(std::uint32_t key) const noexcept {
    // acquire: pairs with the release in ~EntryWrite; what is asked of the owner from here on is
    // answered of this version, or of a later one.
    return entries_[format_.place_of(key)].seq.load(std::memory_order_acquire);
}

// ---- KeyTable: life cycle ----

std::size_t KeyTable::block_bytes(std::uint32_t entries) noexcept {
    constexpr std::uint32_t kMin = 1u << KeyFormat::kMinIndexBits;
    constexpr std::uint32_t kMax = 1u << KeyFormat::kMaxIndexBits;
    const std::uint32_t with_header = entries < kMax ? entries + 1 : kMax;
    return std::size_t{with_header < kMin ? kMin : std::bit_ceil(with_header)} * sizeof(KeyEntry);
}

util::Result<std::unique_ptr<KeyTable>> KeyTable::create(void* block, std::size_t bytes) {
    const std::size_t entries = bytes / sizeof(KeyEntry);
    const bool usable = entries * sizeof(KeyEntry) == bytes && std::has_single_bit(entries) &&
                        entries >= (1u << KeyFormat::kMinIndexBits) &&
                        entries <= (1u << KeyFormat::kMaxIndexBits);
    if (!usable || reinterpret_cast<std::uintptr_t>(block) % sizeof(KeyEntry) != 0) {
        return EINVAL;
    }
    const auto index_bits = static_cast<std::uint32_t>(std::countr_zero(entries));
    const KeyFormat format{
        .index_bits = index_bits,
        .index_mask = static_cast<std::uint32_t>(random_word()) & ((1u << index_bits) - 1)};
    const KeyTableHeader header{.magic = KeyTableHeader::kMagic,
                                .index_bits = format.index_bits,
                                .index_mask = format.index_mask,
                                .unused = {}};
    std::memcpy(block, &header, sizeof header);
    return std::unique_ptr<KeyTable>(
        new KeyTable(static_cast<KeyEntry*>(block), format, random_word()));
}

KeyTable::KeyTable(KeyEntry* entries, KeyFormat format, std::uint64_t secret) noexcept
    : entries_(entries), format_(format), secret_(secret) {
    view_ = KeyView::attach(entries, capacity() * sizeof(KeyEntry)).take();
}

// ---- KeyTable: registration ----

util::Result<std::uint32_t> KeyTable::add(const KeyAttr& attr) {
    if (wraps(attr.addr, attr.length) || wraps(attr.iova, attr.length)) {
        return EINVAL;
    }
    const util::Guard guard(lock_);
    if (attr.is_window && bindings_ == nullptr) {
        bindings_.reset(static_cast<Binding*>(std::calloc(capacity(), sizeof(Binding))));
        if (bindings_ == nullptr) {
            return ENOMEM;
        }
    }
    const std::uint32_t key = add_locked(attr, 0);
    return key != 0 ? util::Result<std::uint32_t>(key) : util::Result<std::uint32_t>(ENOSPC);
}

util::Result<std::uint32_t> KeyTable::add_user(const KeyAttr& attr, std::uint64_t user_key) {
    if (wraps(attr.addr, attr.length) || wraps(attr.iova, attr.length)) {
        return EINVAL;
    }
    const util::Guard guard(lock_);
    if (user_keys_.find(entries_, user_key) != UserKeyIndex::kNone) {
        return EEXIST;
    }
    const std::uint32_t key = add_locked(attr, user_key);
    if (key == 0) {
        return ENOSPC;
    }
    user_keys_.insert(entries_, capacity(), format_.place_of(key));
    return key;
}

/// Returns: 0 when the table is full; 0 is no key, since no generation is 0.
std::uint32_t KeyTable::add_locked(const KeyAttr& attr, std::uint64_t user_key) {
    const std::uint32_t place = take_place_locked();
    if (place == kNoPlace) {
        return 0;
    }
    KeyEntry& entry = entries_[place];
    const std::uint32_t key = next_key(place, attr.consumer);
    EntryWrite write(entry);
    write.set(entry.key, key);
    // relaxed: nobody but the only writer needs the count.
    write.set(entry.uses, entry.uses.load(std::memory_order_relaxed) + 1);
    write.set(entry.user_key, user_key);
    fill(write, entry, attr);
    ++live_;
    return key;
}

/// Places that were never used first, then the one freed longest ago: generations of a place come
/// round as late as they can.
std::uint32_t KeyTable::take_place_locked() {
    if (fresh_ < capacity()) {
        return fresh_++;
    }
    if (freed_.empty()) {
        return kNoPlace;
    }
    const std::uint32_t place = freed_.front();
    freed_.pop_front();
    return place;
}

/// Generations of a place follow one another; where they start differs from place to place and is
/// not to be guessed.
std::uint32_t KeyTable::next_key(std::uint32_t place, std::uint8_t consumer) const noexcept {
    const std::uint64_t generations = (1u << format_.generation_bits()) - 1;  // 0 is left out
    // relaxed: the caller is the only writer.
    const std::uint64_t uses = entries_[place].uses.load(std::memory_order_relaxed);
    const std::uint64_t n = (mix(secret_ + place) % generations + uses) % generations;
    return format_.make(place, static_cast<std::uint32_t>(n) + 1, consumer);
}

KeyEntry* KeyTable::entry_of(std::uint32_t key) const noexcept {
    const std::uint32_t place = format_.place_of(key);
    // relaxed: the caller is the only writer.
    if (place == kNoPlace || entries_[place].key.load(std::memory_order_relaxed) != key) {
        return nullptr;
    }
    return &entries_[place];
}

util::Result<std::uint32_t> KeyTable::find_by_user_key(std::uint64_t user_key) const noexcept {
    const std::uint32_t place = user_keys_.find(entries_, user_key);
    if (place == UserKeyIndex::kNone) {
        return ENOENT;
    }
    // acquire: pairs with the release in EntryWrite::set.
    return entries_[place].key.load(std::memory_order_acquire);
}

util::Status KeyTable::bind_window(std::uint32_t key, const KeyAttr& attr, std::uint32_t region) {
    if (wraps(attr.addr, attr.length) || wraps(attr.iova, attr.length)) {
        return EINVAL;
    }
    const util::Guard guard(lock_);
    KeyEntry* const entry = entry_of(key);
    KeyEntry* const opened = attr.length != 0 ? entry_of(region) : nullptr;
    const bool has_region = opened != nullptr && is_live(*opened, region);
    if (entry == nullptr || !is_window(*entry) || has_region != (attr.length != 0)) {
        return ENOENT;
    }
    // relaxed: this is the only writer.
    if (entry->pd.load(std::memory_order_relaxed) != attr.pd) {
        return EACCES;
    }
    unbind_locked(*entry);
    if (has_region) {
        bindings_[place_of(*entry)].region = place_of(*opened);
        ++bindings_[place_of(*opened)].windows;
    }
    live_ += is_live(*entry, key) ? 0 : 1;
    EntryWrite write(*entry);
    write.set(entry->key, (key & ~0xffu) | attr.consumer);
    fill(write, *entry, attr);
    return util::kOk;
}

bool KeyTable::has_windows_locked(const KeyEntry& entry) const noexcept {
    return bindings_ != nullptr && bindings_[place_of(entry)].windows != 0;
}

void KeyTable::unbind_locked(const KeyEntry& window) noexcept {
    if (bindings_ == nullptr) {
        return;
    }
    // Place 0 is the table's header.
    if (const std::uint32_t region = std::exchange(bindings_[place_of(window)].region, 0u);
        region != 0) {
        --bindings_[region].windows;
    }
}

util::Status KeyTable::replace(std::uint32_t key, const KeyAttr& attr, int timeout_ms,
                               PeerMarks marks) {
    if (wraps(attr.addr, attr.length) || wraps(attr.iova, attr.length)) {
        return EINVAL;
    }
    std::uint32_t access = 0;
    {
        const util::Guard guard(lock_);
        KeyEntry* const entry = entry_of(key);
        if (entry == nullptr || !is_live(*entry, key)) {
            return ENOENT;
        }
        if (has_windows_locked(*entry)) {
            return EBUSY;
        }
        // relaxed: this is the only writer.
        access = entry->access.load(std::memory_order_relaxed);
        EntryWrite write(*entry);
        write.set(entry->access, 0u);
    }
    const bool is_unused = wait_unused(key, timeout_ms, marks);
    const util::Guard guard(lock_);
    KeyEntry& entry = *entry_of(key);
    EntryWrite write(entry);
    if (is_unused) {
        fill(write, entry, attr);
    } else {
        write.set(entry.access, access);
    }
    return is_unused ? util::kOk : util::Status(EBUSY);
}

util::Status KeyTable::renew(std::uint32_t key) {
    const util::Guard guard(lock_);
    KeyEntry* const entry = entry_of(key);
    if (entry == nullptr || !is_live(*entry, key)) {
        return ENOENT;
    }
    // relaxed: this is the only writer.
    const std::uint32_t version = entry->seq.load(std::memory_order_relaxed);
    // release: pairs with the acquire of seq in read_entry(); it is never odd, as no field changes.
    entry->seq.store(version + 2, std::memory_order_release);
    return util::kOk;
}

// ---- KeyTable: deregistration ----

util::Status KeyTable::invalidate(std::uint32_t key) {
    const util::Guard guard(lock_);
    return invalidate_key_locked(key);
}

util::Status KeyTable::invalidate_key_locked(std::uint32_t key) {
    KeyEntry* entry = entry_of(key);
    if (entry == nullptr) {
        return ENOENT;
    }
    if (has_windows_locked(*entry)) {
        return EBUSY;
    }
    invalidate_locked(*entry);
    return util::kOk;
}

util::Status KeyTable::invalidate_window(std::uint32_t key, std::uint32_t pd) {
    const util::Guard guard(lock_);
    KeyEntry* entry = entry_of(key);
    if (entry == nullptr || !is_live(*entry, key)) {
        return ENOENT;
    }
    // relaxed: this is the only writer.
    const std::uint32_t access = entry->access.load(std::memory_order_relaxed);
    const bool is_open = (access & KeyEntry::kWindow) != 0 && (access & kRemoteBits) != 0;
    // relaxed: as above.
    if (!is_open || entry->pd.load(std::memory_order_relaxed) != pd) {
        return EACCES;
    }
    invalidate_locked(*entry);
    return util::kOk;
}

void KeyTable::invalidate_locked(KeyEntry& entry) {
    // relaxed: the caller is the only writer.
    if ((entry.access.load(std::memory_order_relaxed) & KeyEntry::kLive) == 0) {
        return;
    }
    unbind_locked(entry);
    user_keys_.erase(entries_, place_of(entry));
    const std::uint32_t kept = is_window(entry) ? KeyEntry::kWindow : 0u;
    EntryWrite write(entry);
    write.set(entry.access, kept);
    --live_;
}

/// From now on lookups fail, and a window is none any more. Returns: whether other processes may be
/// using the memory.
util::Result<bool> KeyTable::begin_removal(std::uint32_t key) {
    const util::Guard guard(lock_);
    const KeyEntry* const found = entry_of(key);
    const bool may_be_used = found == nullptr || !is_out_of_reach(*found);
    if (const util::Status status = invalidate_key_locked(key); !status.is_ok()) {
        return status;
    }
    KeyEntry& entry = *entry_of(key);
    EntryWrite write(entry);
    write.set(entry.access, 0u);
    return may_be_used;
}

util::Status KeyTable::remove(std::uint32_t key, int timeout_ms, PeerMarks marks) {
    const util::Result<bool> may_be_used = begin_removal(key);
    if (!may_be_used.is_ok()) {
        return may_be_used.status();
    }
    if (!wait_unused(key, timeout_ms, may_be_used.value() ? marks : PeerMarks{})) {
        return EBUSY;
    }
    const util::Guard guard(lock_);
    KeyEntry* entry = entry_of(key);
    if (entry == nullptr) {
        return ENOENT;  // another thread removed it meanwhile
    }
    {
        EntryWrite write(*entry);
        write.set(entry->key, 0u);
    }
    freed_.push_back(format_.place_of(key));
    return util::kOk;
}

std::uint32_t KeyTable::live_keys() const noexcept {
    const util::Guard guard(lock_);
    return live_;
}

}  // namespace rvt::core
