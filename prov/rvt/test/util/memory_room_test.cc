// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What control groups leave, read from a tree of files like the kernel's.
#include "util/memory_room.h"

#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "common/check.h"

using rvt::util::kUnlimitedMemory;
using rvt::util::memory_room;

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
