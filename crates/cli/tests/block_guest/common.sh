#!/bin/sh
# What the scripts of the guests share. Functions of this shell would be other processes when they
# are started with &, so a server is started by hand.
fail() { echo "FAILED: $*"; cat /proc/swaps; ls /dev/ublk* /sys/block; exit 1; }
# Waits until a command succeeds.
wait_until() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "waited in vain until $*"
        sleep 0.1
    done
}
play() { GUEST_ROLE="$*" ./program --exact plays_its_role --nocapture; }
# Begins to wait for a server's device; the server runs already.
device_is_there() { [ -s /tmp/device ]; }
device_of() {
    wait_until device_is_there
    device=$(cat /tmp/device)
}
forget_device() { rm -f /tmp/device /tmp/stop; }
# A program of 40 MiB that goes on checking them, in a control group of its own. To be run by sh -c
# with its output in /tmp/said.
swapped_out_hog='echo $$ > /sys/fs/cgroup/hog/cgroup.procs
    GUEST_ROLE="hog 40 9 1000000000" exec ./program --exact plays_its_role --nocapture'
echo +memory > /sys/fs/cgroup/cgroup.subtree_control || fail "there is no control of memory"
mkdir -p /sys/fs/cgroup/hog
# Waits until the program $hog has written its pages, and swaps out what it can.
swap_out_hog() {
    wait_until grep -q "are written" /tmp/said
    # EAGAIN where it finds less to take.
    echo 32M > /sys/fs/cgroup/hog/memory.reclaim
    swapped=$(cat /sys/fs/cgroup/hog/memory.swap.current)
    [ "$swapped" -gt 4194304 ] || fail "nothing was swapped out"
    kill -0 "$hog" || fail "the hog has ended too early"
}
# Ends a server the ordinary way.
stop_server() {
    touch /tmp/stop
    wait "$server" || fail "the server's exit status"
}
no_ghosts() {
    for left in /dev/ublkb* /dev/ublkc* /sys/block/nbd*/pid; do
        [ ! -e "$left" ] || fail "$left is left"
    done
    [ "$(wc -l < /proc/swaps)" = 1 ] || fail "swap is on"
}
has_some() { [ -s /mnt/during ]; }
# Makes a file system on the server's device with /mnt/before on it, and kills the server while
# /mnt/during is written, by $writer.
kill_while_written() {
    device_of
    ./mke2fs -q -t ext4 "$device" || fail mke2fs
    mount -t ext4 "$device" /mnt || fail mount
    play "write /mnt/before 24 1" || fail write
    GUEST_ROLE="write /mnt/during 32 2" ./program --exact plays_its_role --nocapture &
    writer=$!
    wait_until has_some
    kill -9 "$server"
    wait "$server"
}
# Checks what kill_while_written has written, and ends the file system.
nothing_is_missing() {
    echo 3 > /proc/sys/vm/drop_caches
    play "check /mnt/before 24 1" | tee /tmp/said
    grep -q "check: 6144 right 0 unreadable" /tmp/said || fail "what was there before"
    play "check /mnt/during 32 2" | tee /tmp/said
    grep -q "check: 8192 right 0 unreadable" /tmp/said || fail "what was written meanwhile"
    umount /mnt || fail umount
    ./e2fsck -fn "$device" || fail "e2fsck finds errors"
}
# Data that outlives a server, in memory that is never swapped out.
mkdir -p /disk && mount -t ramfs disk /disk
