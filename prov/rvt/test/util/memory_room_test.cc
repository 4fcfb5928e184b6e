// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What control groups leave, read from a tree of files like the kernel's.
#include "util/memory_room.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include <sys/inotify.h>
#include <unistd.h>

#include "common/check.h"
#include "util/unique_fd.h"

using rvt::util::kUnlimitedMemory;
using rvt::util::memory_room;
using rvt::util::MemoryPromise;

namespace {

/// Files in a directory of their own, which goes with the object.
class Tree {
  public:
    Tree() {
        std::string name = "/tmp/rvt-memory-room-XXXXXX";
        root_ = mkdtemp(name.data());
    }
    ~Tree() { std::filesystem::remove_all(root_); }
    Tree(const Tree&) = delete;
    Tree& operator=(const Tree&) = delete;

    void put(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
        std::ofstream(root_ + path) << text;
    }
    const std::string& root() const { return root_; }
    std::uint64_t room() const { return memory_room(root_ + "/groups", root_); }

  private:
    std::string root_;
};

}  // namespace

Test(memory_room, is_the_least_on_the_way_up_in_version_2) {
    const Tree tree;
    tree.put("/groups", "0::/a/b\n");
    tree.put("/a/memory.max", "1000000\n");
    tree.put("/a/memory.current", "900000\n");
    tree.put("/a/memory.stat", "anon 800000\ninactive_file 3000\nactive_file 2000\n");
    tree.put("/a/b/memory.max", "max\n");
    tree.put("/a/b/memory.current", "700000\n");
    RVT_EQ(tree.room(), 105000);
    tree.put("/a/b/memory.max", "700500\n");
    RVT_EQ(tree.room(), 500);
    tree.put("/a/b/memory.current", "800000\n");
    RVT_EQ(tree.room(), 0);
}

Test(memory_room, is_found_in_the_hierarchy_of_version_1) {
    const Tree tree;
    tree.put("/groups", "5:cpu,cpuacct:/x\n4:memory:/a\n0::/\n");
    tree.put("/memory/memory.limit_in_bytes", "9223372036854771712\n");
    tree.put("/memory/a/memory.limit_in_bytes", "4096000\n");
    tree.put("/memory/a/memory.usage_in_bytes", "96000\n");
    tree.put("/memory/a/memory.stat",
             "inactive_file 1\ntotal_inactive_file 90\ntotal_active_file 6\n");
    RVT_EQ(tree.room(), 4000096);
}

Test(memory_room, is_less_by_what_is_promised_and_not_yet_taken) {
    const Tree tree;
    RVT_ASSERT(tree.room() == kUnlimitedMemory);
    tree.put("/groups", "0::/\n");
    tree.put("/memory.max", "5000\n");
    tree.put("/memory.current", "1000\n");
    MemoryPromise first(1000);
    {
        const MemoryPromise second(500);
        RVT_EQ(tree.room(), 2500);
    }
    RVT_EQ(tree.room(), 3000);
    first.reduce_to(300);
    first.reduce_to(400);
    RVT_EQ(tree.room(), 3700);
    first = MemoryPromise(8000);
    RVT_EQ(tree.room(), 2000);  // never more than half
    const MemoryPromise moved = std::move(first);
    first = MemoryPromise();
    RVT_EQ(tree.room(), 2000);
    std::filesystem::remove(tree.root() + "/memory.max");
    RVT_ASSERT(tree.room() == kUnlimitedMemory);
}

// The kernel adds it up for each reader.
Test(memory_room, is_found_with_one_look_at_what_a_group_has) {
    const Tree tree;
    tree.put("/groups", "0::/\n");
    tree.put("/memory.max", "5000\n");
    tree.put("/memory.current", "1000\n");
    tree.put("/memory.stat", "inactive_file 10\nactive_file 20\n");
    const rvt::util::UniqueFd looks(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    // Two of a kind in a row would be told of as one.
    RVT_ASSERT(inotify_add_watch(looks.get(), (tree.root() + "/memory.stat").c_str(),
                                 IN_OPEN | IN_CLOSE_NOWRITE) >= 0);
    RVT_EQ(tree.room(), 4030);
    inotify_event events[8];
    RVT_EQ(read(looks.get(), events, sizeof events), 2 * sizeof events[0]);
}

Test(memory_room, is_that_of_the_mounted_root_where_the_path_is_not_visible) {
    const Tree tree;
    tree.put("/groups", "4:memory:/docker/0123\n");
    tree.put("/memory/memory.limit_in_bytes", "5000\n");
    tree.put("/memory/memory.usage_in_bytes", "1000\n");
    RVT_EQ(tree.room(), 4000);
}

Test(memory_room, is_unlimited_where_nothing_says_otherwise) {
    const Tree tree;
    RVT_ASSERT(tree.room() == kUnlimitedMemory);
    tree.put("/groups", "no group at all\n0::/\n");
    RVT_ASSERT(tree.room() == kUnlimitedMemory);
}
