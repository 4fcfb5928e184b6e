// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Registration: what a backend must bring, what it gets for what it leaves out, and who is told.
#include "core/registry.h"

#include "common/check.h"
#include "common/process.h"
#include "conform/test_segments.h"
#include "core/context.h"
#include "core/requirements.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

using namespace rvt;
using namespace rvt::core;

namespace {

DeviceInfo info(const char* name) {
    return {.name = name, .limits = {.max_qp = 8, .max_mr = 15}, .payload_bytes = 1024};
}

const BackendOps& ops() {
    return conform::test_segment_ops();
}

/// A device of the test backend, which needs its port.
Result<Device*> add(Registry& registry, const char* name) {
    static conform::TestPort port;
    return registry.add_device(info(name), ops(), &port);
}

bool says(const char* what) {
    return Registry::last_error().find(what) != std::string::npos;
}

/// A requirement as docs/backends.md has it.
std::string row_of(const Requirement& row) {
    constexpr const char* kGrades[] = {"packet", "segment", "verb"};
    const std::string needed =
        row.when.kind == NeededWhen::Kind::kGrade
            ? std::string("by ") + kGrades[static_cast<std::size_t>(row.when.grade)] + " grade"
            : std::string("with `") + entry_name(row.when.other) + "`";
    return std::string("| `") + entry_name(row.entry) + "` | " + needed + " | " + row.why + " |";
}

/// A client that writes down what it hears.
struct Listener {
    std::vector<std::string> heard;
    Status answer = kOk;
    Client client{.name = "listener",
                  .add =
                      [](Device& device, void* self) {
                          auto& me = *static_cast<Listener*>(self);
                          me.heard.push_back("+" + device.name());
                          return me.answer;
                      },
                  .remove =
                      [](Device& device, void* self) {
                          static_cast<Listener*>(self)->heard.push_back("-" + device.name());
                      },
                  .context = this};
};

using Told = std::vector<std::string>;

DeviceInfo packet_info() {
    DeviceInfo packet = info("p");
    packet.grade = Grade::kPacket;
    return packet;
}
/// All that a packet device has to have.
BackendOps packet_ops() {
    BackendOps ops;
    ops.send_packets = [](Device&, const AhAttr&, std::span<const OutPacket>) { return 0u; };
    ops.poll = [](Device&) { return 0u; };
    return ops;
}

}  // namespace

Test(registry, names_every_entry_that_is_missing_and_what_for) {
    Registry registry;
    RVT_EQ(registry.add_device(info("d"), {}), EINVAL);
    for (const char* entry :
         {"open_channel", "close_channel", "send_segment", "poll", "carrying work requests"}) {
        cr_assert(says(entry), "%s", Registry::last_error().c_str());
    }
    RVT_ASSERT(not(says("post_send")));
}

Test(registry, an_entry_that_is_filled_can_make_another_mandatory) {
    BackendOps half = ops();
    half.create_cq = [](VerbsCq&) -> Status { return kOk; };
    const std::string missing = missing_entries(half, Grade::kSegment);
    RVT_ASSERT(missing.find("destroy_cq") != std::string::npos);
    RVT_ASSERT(missing.find("poll_cq") != std::string::npos);
}

Test(registry, the_verb_grade_needs_the_verbs_and_no_segments) {
    const std::string missing = missing_entries({}, Grade::kVerb);
    RVT_ASSERT(missing.find("post_send") != std::string::npos);
    RVT_ASSERT(missing.find("send_segment") == std::string::npos);
}

Test(registry, after_filling_every_entry_is_callable) {
    const BackendOps full = fill_defaults({});
    void (*entries[sizeof full / sizeof(void (*)())])();
    std::memcpy(entries, &full, sizeof full);
    for (auto* entry : entries) {
        RVT_ASSERT(entry != nullptr);
    }
}

Test(registry, filling_keeps_what_the_backend_brought) {
    RVT_ASSERT(fill_defaults(ops()).poll == ops().poll);
}

Test(registry, docs_backends_md_has_every_requirement_and_no_other) {
    const char* source = std::getenv("RVT_SRCDIR");
    cr_assert(source != nullptr, "RVT_SRCDIR is not set: run the tests by make check");
    std::ifstream document(std::string(source) + "/docs/backends.md");
    std::vector<std::string> described;
    for (std::string line; std::getline(document, line);) {
        if (line.starts_with("| `") && (line.find("` | by ") != std::string::npos ||
                                        line.find("` | with `") != std::string::npos)) {
            described.push_back(line);
        }
    }
    RVT_EQ(described.size(), requirements().size());
    for (const Requirement& row : requirements()) {
        const std::string line = row_of(row);
        cr_assert(std::find(described.begin(), described.end(), line) != described.end(), "%s",
                  line.c_str());
    }
}

Test(registry, every_requirement_names_a_known_entry_and_a_reason) {
    for (const Requirement& row : requirements()) {
        RVT_ASSERT(std::strcmp(entry_name(row.entry), "?") != 0);
        RVT_ASSERT(std::strlen(row.why) > 3);
    }
}

Test(registry, a_packet_backend_carries_whole_cache_lines) {
    Registry registry;
    DeviceInfo packet = packet_info();
    for (const std::uint32_t bytes : {0u, 192u, 1500u, kMaxPayload + 64}) {
        packet.payload_bytes = bytes;
        RVT_EQ(registry.add_device(packet, packet_ops()), EINVAL);
    }
    packet.payload_bytes = kMaxPayload;
    RVT_OK(registry.add_device(packet, packet_ops()));
}

Test(registry, a_device_tells_the_mtu_of_the_specification_that_it_carries) {
    Registry registry;
    DeviceInfo packet = packet_info();
    packet.payload_bytes = 1408;
    Device* device = registry.add_device(packet, packet_ops()).value();
    RVT_EQ(device->payload_bytes(), 1408);
    RVT_EQ(device->mtu_bytes(), 1024);
    RVT_EQ(device->limits().max_ud_bytes, 1024);
    port_changed(*device, 8896);
    RVT_EQ(device->mtu_bytes(), 4096);
}

Test(registry, a_packet_device_has_no_message_of_more_packets_than_can_be_told_apart) {
    Registry registry;
    DeviceInfo packet = packet_info();
    packet.payload_bytes = 256;
    packet.limits.max_message_bytes = std::uint64_t{1} << 40;
    RVT_EQ(registry.add_device(packet, packet_ops()).value()->limits().max_message_bytes, 1u << 31);
}

Test(registry, a_name_that_is_taken_is_refused) {
    Registry registry;
    RVT_OK(add(registry, "d"));
    RVT_EQ(add(registry, "d"), EEXIST);
}

Test(registry, limits_of_zero_are_refused) {
    Registry registry;
    DeviceInfo none = info("d");
    none.limits.max_qp = 0;
    RVT_EQ(registry.add_device(none, ops()), EINVAL);
}

Test(registry, a_backend_can_bring_the_memory_of_the_key_table) {
    alignas(64) static std::byte block[16 * 64] = {};
    Registry registry;
    DeviceInfo own = info("d");
    own.key_block = block;
    own.key_block_bytes = sizeof block;
    Device* device = registry.add_device(own, ops()).value();
    RVT_OK(device->keys().add({.addr = 1, .length = 1}));
    RVT_ASSERT(KeyView::attach(block, sizeof block).is_ok());
}

Test(registry, a_client_hears_of_devices_before_and_after_it_came_and_when_they_go) {
    Registry registry;
    Listener listener;
    Device* first = add(registry, "first").value();
    registry.add_client(listener.client);
    RVT_OK(add(registry, "second"));
    RVT_OK(registry.remove_device(first));
    registry.remove_client(listener.client);
    RVT_ASSERT(listener.heard == (Told{"+first", "+second", "-first", "-second"}));
}

Test(registry, a_client_that_refuses_a_device_does_not_hear_of_its_end) {
    Registry registry;
    Listener listener;
    listener.answer = ENOMEM;
    registry.add_client(listener.client);
    RVT_OK(registry.remove_device(add(registry, "d").value()));
    RVT_ASSERT(listener.heard == (Told{"+d"}));
}

Test(registry, contexts_are_told_when_a_port_changes_and_only_then) {
    Registry registry;
    Device* device = add(registry, "d").value();
    Context* context = open_device(*device).value();
    const std::uint32_t most = device->mtu_bytes();
    port_changed(*device, most);
    RVT_ASSERT(not(context->events().poll().has_value()));
    port_changed(*device, 0);
    RVT_ASSERT(device->is_port_down());
    RVT_EQ(context->events().poll()->type, EventType::kPortErr);
    port_changed(*device, most / 2);
    RVT_ASSERT(not(device->is_port_down()));
    RVT_EQ(device->mtu_bytes(), most / 2);
    RVT_EQ(context->events().poll()->type, EventType::kPortActive);
    port_changed(*device, most / 4);
    RVT_EQ(context->events().poll()->type, EventType::kPortErr);
    RVT_OK(close_device(context));
    RVT_OK(registry.remove_device(device));
}

Test(registry, a_device_in_use_is_busy_and_its_contexts_are_told) {
    Registry registry;
    Device* device = add(registry, "d").value();
    Context* context = open_device(*device).value();
    RVT_EQ(registry.remove_device(device), EBUSY);
    RVT_EQ(context->events().poll()->type, EventType::kDeviceFatal);
    RVT_EQ(open_device(*device), ENODEV);
    RVT_OK(close_device(context));
    RVT_OK(registry.remove_device(device));
    RVT_ASSERT(registry.devices().empty());
}

// Who polls is told a time that may be some polls old, but no more, and not from before a pause.
Test(registry, the_time_of_a_device_that_is_polled_goes_on) {
    Registry registry;
    Device* device = add(registry, "polled").value();
    std::uint64_t told = 0;
    for (int round = 0; round < 100; ++round) {
        const std::uint64_t before = device->now_us();
        for (int polls = 0; polls < 16; ++polls) {
            device->progress(told);
        }
        RVT_ASSERT(told >= before && told <= device->now_us());
    }
    const std::uint64_t later = device->now_us() + 1000;
    while (device->now_us() < later) {
    }
    device->progress(told);
    RVT_ASSERT(told >= later);
    RVT_OK(registry.remove_device(device));
}

Test(registry, is_there_for_who_closes_during_exit) {
    test::Process child([](test::Process&) {
        struct Late {
            conform::TestPort port;
            Device* device = nullptr;
            ~Late() {
                Registry& registry = Registry::instance();
                if (!registry.remove_device(device).is_ok() || !registry.devices().empty()) {
                    _exit(1);
                }
            }
        };
        static Late late;  // before the registry: it ends after what has been made later
        late.device = Registry::instance().add_device(info("late"), ops(), &late.port).value();
        std::exit(0);  // NOLINT(concurrency-mt-unsafe): one thread
    });
    RVT_EQ(child.wait(), 0);
}
