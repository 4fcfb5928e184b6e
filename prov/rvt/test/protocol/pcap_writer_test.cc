// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Captures: read back as they were written, and harmless when they cannot be.
#include "protocol/pcap_writer.h"

#include "common/check.h"
#include "common/process.h"
#include "protocol/capture.h"
#include "protocol/headers.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

using namespace rvt;
using namespace rvt::protocol;
using test::Capture;
using test::CapturedPacket;
using test::CaptureFile;

namespace {

constexpr std::array<std::uint8_t, 16> v4(std::uint8_t last) {
    return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last};
}
constexpr std::array<std::uint8_t, 16> v6(std::uint8_t last) {
    return {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last};
}

std::int64_t bytes_of(const CaptureFile& file) {
    struct stat about {};
    RVT_EQ(fstat(file.fd.get(), &about), 0);
    return about.st_size;
}

std::shared_ptr<PcapWriter> open(const std::string& name) {
    auto opened = PcapWriter::open(name);
    RVT_OK(opened);
    return opened.take();
}

/// A SEND of eight bytes in its form on the wire.
std::vector<std::byte> message(const IpPath& path, std::uint16_t identification) {
    std::vector<std::byte> bytes(kBthBytes + 8);
    encode({.opcode = Opcode::kRcSendOnly, .dest_qpn = 17, .psn = Psn(99)}, bytes.data());
    const std::uint32_t icrc = icrc_of(path, bytes, identification);
    const auto trailer = std::as_bytes(std::span(&icrc, 1));
    bytes.insert(bytes.end(), trailer.begin(), trailer.end());
    return bytes;
}

void append_one(PcapWriter& writer, std::uint32_t interface) {
    const IpPath path{.source = v4(1), .dest = v4(2), .source_port = 7, .dest_port = 4791};
    const auto bytes = message(path, 0);
    writer.append({.interface = interface, .packet = {.path = path, .bytes = bytes}});
}

}  // namespace

Test(pcap_writer, what_it_wrote_is_read_back) {
    const CaptureFile file;
    auto writer = open(file.name);
    writer->add_interface("first");
    const std::uint32_t interface = writer->add_interface("second");
    const IpPath path{.source = v4(1), .dest = v4(2), .source_port = 5555, .dest_port = 6666};
    const auto bytes = message(path, 3);
    writer->append({.interface = interface,
                    .direction = PcapWriter::Direction::kOut,
                    .at_ns = 1'700'000'000'123'456'789,
                    .packet = {.path = path, .identification = 3, .bytes = bytes}});
    writer.reset();
    const Capture capture = test::read_capture(file.name);
    RVT_ASSERT(capture.interfaces == std::vector<std::string>({"first", "second"}));
    RVT_EQ(capture.packets.size(), 1);
    const CapturedPacket& packet = capture.packets[0];
    RVT_EQ(packet.interface, 1);
    RVT_EQ(packet.at, 1'700'000'000'123'456'789);
    RVT_EQ(packet.flags, 2);
    RVT_ASSERT(packet.comment.empty());
    RVT_EQ(packet.identification, 3);
    RVT_ASSERT(packet.path.source == path.source && packet.path.dest == path.dest);
    RVT_ASSERT(packet.path.source_port == 5555 && packet.path.dest_port == 6666);
    RVT_EQ(packet.icrc, icrc_of(packet.path, packet.packet, 3));
    RVT_EQ(decode(packet.packet).value().header.dest_qpn, 17);
}

Test(pcap_writer, a_wrong_icrc_is_marked) {
    const CaptureFile file;
    auto writer = open(file.name);
    const std::vector<std::byte> bytes(32);
    writer->append({.interface = writer->add_interface("one"),
                    .has_right_icrc = false,
                    .packet = {.path = {.source = v6(1), .dest = v6(2)}, .bytes = bytes}});
    writer.reset();
    const Capture capture = test::read_capture(file.name);
    RVT_EQ(capture.packets[0].flags, 1 | 1 << 24);
    RVT_ASSERT(capture.packets[0].comment == "wrong ICRC");
}

Test(pcap_writer, a_name_holds_the_process_and_the_host) {
    std::array<char, 256> host{};
    RVT_EQ(gethostname(host.data(), host.size() - 1), 0);
    const std::string wanted =
        "a-" + std::string(host.data()) + "-" + std::to_string(getpid()) + "%x%.pcapng%";
    RVT_ASSERT(PcapWriter::expand("a-%h-%p%x%.pcapng%") == wanted);
}

Test(pcap_writer, a_file_has_one_writer) {
    const CaptureFile file;
    auto writer = open(file.name);
    RVT_EQ(PcapWriter::open(file.name), EBUSY);
    writer.reset();
    RVT_OK(PcapWriter::open(file.name));
}

Test(pcap_writer, replaces_what_the_file_held) {
    const CaptureFile file;
    RVT_EQ(ftruncate(file.fd.get(), 1 << 20), 0);
    open(file.name)->add_interface("one");
    RVT_EQ(test::read_capture(file.name).interfaces.size(), 1);
}

Test(pcap_writer, neither_a_pipe_nor_a_place_that_is_not_there_is_taken) {
    int ends[2] = {-1, -1};
    RVT_EQ(pipe2(ends, O_CLOEXEC), 0);
    RVT_EQ(PcapWriter::open("/proc/self/fd/" + std::to_string(ends[1])), EINVAL);
    RVT_EQ(PcapWriter::open("/proc/nowhere/file"), ENOENT);
    RVT_EQ(PcapWriter::open("/proc"), EISDIR);
}

Test(pcap_writer, a_full_disk_ends_the_capture) {
    auto writer = open("/dev/full");
    append_one(*writer, writer->add_interface("one"));
    RVT_ASSERT(writer->is_on());
    writer->flush();
    RVT_ASSERT(not(writer->is_on()));
    append_one(*writer, 0);
    writer->flush();
}

Test(pcap_writer, a_limit_of_file_sizes_ends_the_capture_behind_a_whole_block) {
    const CaptureFile file;
    auto writer = open(file.name);
    append_one(*writer, writer->add_interface("one"));
    writer->flush();
    const rlimit limit{.rlim_cur = static_cast<rlim_t>(bytes_of(file)) + 1,
                       .rlim_max = RLIM_INFINITY};
    RVT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    append_one(*writer, 0);
    writer->flush();
    RVT_ASSERT(not(writer->is_on()));
    RVT_EQ(test::read_capture(file.name).packets.size(), 1);
}

Test(pcap_writer, threads_write_whole_blocks) {
    constexpr int kThreads = 4;
    constexpr int kPackets = 5000;
    const CaptureFile file;
    auto writer = open(file.name);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&] {
            const std::uint32_t interface = writer->add_interface("one");
            for (int n = 0; n < kPackets; ++n) {
                append_one(*writer, interface);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    writer.reset();
    const Capture capture = test::read_capture(file.name);
    RVT_EQ(capture.interfaces.size(), kThreads);
    RVT_EQ(capture.packets.size(), kThreads * kPackets);
}

Test(pcap_writer, who_finds_nothing_to_do_writes_what_waits, .timeout = 30) {
    const CaptureFile file;
    auto writer = open(file.name);
    append_one(*writer, writer->add_interface("one"));
    while (bytes_of(file) == 0) {
        writer->flush_when_idle();
    }
    RVT_EQ(test::read_capture(file.name).packets.size(), 1);
}

Test(pcap_writer, a_forked_child_leaves_its_parents_file_alone) {
    const CaptureFile file;
    auto writer = open(file.name);
    append_one(*writer, writer->add_interface("one"));
    test::Process child([&](test::Process&) {
        if (writer->is_on()) {
            _exit(1);
        }
        append_one(*writer, 0);
        writer->flush();
        writer.reset();
    });
    RVT_EQ(child.wait(), 0);
    RVT_EQ(bytes_of(file), 0);
    writer.reset();
    RVT_EQ(test::read_capture(file.name).packets.size(), 1);
}
