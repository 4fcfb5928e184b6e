#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# rvt_info answers what its manual page promises.
info=${RVT_BUILDDIR:-.}/util/rvt_info/rvt_info
bad=0

check() {  # check SENTENCE PATTERN COMMAND...
    local sentence=$1 pattern=$2 answer
    shift 2
    answer=$("$@" 2>&1)
    if grep -qE -- "$pattern" <<<"$answer"; then
        echo "ok - $sentence"
    else
        printf 'not ok - %s\n%s\n' "$sentence" "$answer"
        bad=1
    fi
}

# shellcheck disable=SC2317  # called by check
status_of() {
    "$@" >/dev/null 2>&1
    echo "status $?"
}

check 'the device is listed with its address' 'fi_sockaddr_in://127.0.0.1:0' env FI_RVT_ROCE=0 "$info"
check 'connections are listed with remote memory' 'endpoints +FI_EP_MSG.*capabilities +FI_MSG, FI_RMA, FI_ATOMIC' \
    bash -c "'$info' | tr '\n' ' '"
check 'parameters are listed' 'FI_RVT_HOST_REMOTE' "$info"
check 'a refused hint is named' 'hint +ep_attr->protocol' "$info" --why ep.protocol=5
check 'what is offered is named' 'offered +at most 4096' "$info" --why tx.inject_size=65536
check 'what to change is said' 'FI_RVT_HOST_REMOTE=1' \
    env FI_RVT_ROCE=0 "$info" --why 'caps=TAGGED|REMOTE_COMM'
check 'bits that are missing are to be given' 'give mr_mode the bits' \
    "$info" --why 'ep.type=FI_EP_MSG,caps=FI_MSG|FI_RMA,domain.mr_mode=0'
check 'where a variable leaves no device it is said which' 'set FI_RVT_ROCE_INTERFACE to' \
    env FI_RVT_ROCE_INTERFACE=nowhere0 "$info"
check 'an accepted request says what it gets' 'accepts' "$info" --why caps=FI_TAGGED
check 'who refuses beside one that accepts is named, too' '^rvt-host/shm FI_EP_DGRAM refuses' \
    "$info" --why caps=FI_TAGGED
check 'and the one that accepts by its type' '^rvt-host/shm FI_EP_RDM accepts' "$info" --why caps=FI_TAGGED
check 'a parameter changes the answer' 'accepts' \
    env FI_RVT_ROCE=0 FI_RVT_HOST_REMOTE=1 "$info" --why 'caps=TAGGED|REMOTE_COMM'
check 'an address where nobody listens is not reached' 'not reached +fi_read' \
    env FI_RVT_REFUSED_TIMEOUT_MS=200 "$info" --peer 127.0.0.1:9
check 'an address of another host is not reached without a wire' 'not reached +fi_read' \
    env FI_RVT_ROCE=0 "$info" --peer 192.0.2.99:9
check 'what an address is refused for is said' 'offered +fi_sockaddr_in://address:port' "$info" --peer nonsense:1
check 'and how to write it' 'change +write it as 127.0.0.1:4711' "$info" --peer 127.0.0.1:70000
# A peer that is there, and computes.
coproc PEER { FI_RVT_ROCE=0 "${RVT_BUILDDIR:-.}/fabtests/functional/peer_end"; }
read -r address <&"${PEER[0]}"
answer=$(FI_RVT_ROCE=0 "$info" --peer "$address")
check 'a peer of this host is reached through shared memory' 'reached by +shared memory with process [0-9]+, small rings$' \
    echo "$answer"
for way in 'through rings' 'copied by one side' 'copied by both sides' 'mapped regions'; do
    check "it is said whether data goes: $way" "^ *$way +(permitted|refused, process_vm_(read|write)v: .)" echo "$answer"
done
check 'how far it is is said' '^ *processors +[0-9]+ here, the peer opened on [0-9]+: .*, memory node [0-9]' \
    echo "$answer"
check 'a peer that was described may be so again' 'reached by +shared memory' env FI_RVT_ROCE=0 "$info" --peer "$address"
eval "exec ${PEER[1]}>&-"
wait
check 'an unknown hint is an error' 'status 2' status_of "$info" --why nonsense=1
check 'a missing provider is an error' 'status 1' \
    status_of env FI_PROVIDER_PATH=/nonexistent "$info"
check 'a value that is refused is said to be' 'parameter eager_max: 1 given, .*; 32768 is used' \
    env FI_RVT_EAGER_MAX=1 "$info"
check 'of yes and no it is said what is possible' \
    'parameter roce: maybe given, yes or no possible \(or .*on and off\); yes is used' env FI_RVT_ROCE=maybe "$info"
check 'a size between the steps is refused' \
    'parameter roce_mtu: 300 given, 0 or from 256 to 8960 in steps of 64 possible.*; 0 is used' \
    env FI_RVT_ROCE_MTU=300 "$info"
check 'faults that cannot be read are warned of' 'parameter fault: cannot read "lose=2%"' \
    env FI_RVT_FAULT=drop=1%,lose=2% "$info"
check 'the log is shown where it is asked for' '^rvt_info: .*not reached|^rvt_info: .*127.0.0.1' \
    env FI_LOG_LEVEL=info FI_RVT_ROCE=0 FI_RVT_REFUSED_TIMEOUT_MS=200 "$info" --peer 127.0.0.1:9
check 'what others were refused is not reported with it' '^same$' \
    bash -c "diff <(FI_RVT_ROCE=0 '$info' --why caps=FI_TAGGED 2>/dev/null) \
        <(FI_LOG_LEVEL=info FI_RVT_ROCE=0 '$info' --why caps=FI_TAGGED 2>/dev/null) && echo same"
check 'a provider that is kept out is said to be' 'as FI_PROVIDER=tcp tells it' env FI_PROVIDER=tcp "$info"
check 'and is an error, whatever is asked' 'status 1' status_of env FI_PROVIDER=tcp "$info" --why caps=FI_MSG
check 'it is when something is asked, too' 'status 1' \
    status_of env FI_PROVIDER_PATH=/nonexistent "$info" --why caps=FI_MSG
check 'and when a peer is' 'status 1' status_of env FI_PROVIDER_PATH=/nonexistent "$info" --peer 127.0.0.1:9
if command -v python3 >/dev/null; then
    check 'the JSON is well formed' '"hint"' \
        bash -c "'$info' --json --why ep.protocol=5 | python3 -m json.tool"
fi
# What the provider judges, and what rvt_info prints, can be asked for.
rules=${RVT_SRCDIR:-.}/prov/rvt/ofi/info_rules.cc
judged=$(grep -oE '^ *(RVT_[A-Z_]+\([a-z_]+, [a-z_]+|Rule\{"[^"]+)' "$rules" | sed -E 's/.*\((.*), /\1->/; s/.*"//')
check 'every hint that is judged may be given' '^all of [1-9][0-9]$' \
    bash -c "grep -vxF -f <('$info' --hints) <<<'$judged' || echo all of $(wc -l <<<"$judged")"
orders=$("$info" | sed -n '/FI_EP_RDM/,/message order/s/^ *message order *//p' | sed 's/, /|/g')
check 'every order that is offered may be asked for' '^rvt-host/shm.* accepts' \
    "$info" --why "ep.type=FI_EP_RDM,tx.msg_order=$orders"
check 'protocols have their names' '^rvt-host/shm.* accepts' \
    "$info" --why ep.type=FI_EP_MSG,ep.protocol=FI_PROTO_RDMA_CM_IB_RC
later=caps='FI_TAGGED|FI_TAGGED_DIRECTED_RECV',domain.control_progress=FI_PROGRESS_CONTROL_UNIFIED
check 'what is new in libfabric 2.x has its name, too' '^rvt-host/shm.* accepts' \
    "$info" --why "ep.type=FI_EP_RDM,tx.comp_order=FI_ORDER_NONE,$later"
page=${RVT_SRCDIR:-.}/man/fi_rvt.7
for name in $("$info" | grep -oE '\bFI_RVT_[A-Z_]+'); do
    check "the manual page explains $name" "^\\.BR $name " cat "$page"
done
exit $bad
