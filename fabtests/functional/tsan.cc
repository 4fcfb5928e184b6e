// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What ThreadSanitizer is not to report of the test program.

#if defined(__SANITIZE_THREAD__)
/// What a peer does to registered memory may be carried out by a thread of the provider, and what
/// orders that with the application here, which fills the memory before and looks at it after, is
/// the peer's own doing: another process, into which the sanitizer cannot see. So nothing is said
/// of the cases' functions that wait for such memory to change, nor of the provider's that carry it
/// out, for RDM endpoints first and then for pairs. Of two accesses it may know the caller of the
/// later one only, so both sides are named.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions() {
    return "race:expect_slot\n"
           "race:expect_to_stay\n"
           "race:contended\n"
           "race:fab::*::inject_write\n"
           "race:fab::*::injected_writes\n"
           "race:rvt::core::copy_to_region\n"
           "race:rvt::core::copy_from_region\n"
           "race:rvt::core::atomic_apply\n"
           "race:rvt::core::atomic_fetch\n"
           "race:rvt::core::atomic_compare\n"
           "race:rvt::core::place_data\n"
           "race:rvt::core::do_atomic\n"
           "race:rvt::core::do_extended_atomic\n"
           "race:rvt::core::do_answered\n"
           "race:rvt::core::PacketResponder::send_read_data\n";
}
#endif
