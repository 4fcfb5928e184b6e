#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Makes configure and the Makefile.in files out of a checkout.
set -e
cd "$(dirname "$0")"
mkdir -p build-aux m4
exec autoreconf --install --warnings=all,no-obsolete
