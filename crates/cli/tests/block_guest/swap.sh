# Swap under a program of twice the guest's memory, and swapoff while a program has pages there.
# Not on nbd, where it was seen to hang (docs/design/kernel-devices.md).
echo +memory > /sys/fs/cgroup/cgroup.subtree_control || fail "there is no control of memory"
for kind in "ublk 512"; do
    forget_device
    GUEST_ROLE="$kind swap" ./program --exact plays_its_role --nocapture & server=$!
    device_of
    grep -q "^$device " /proc/swaps || fail "$device is not on"
    play "hog $HOG_MIB 7 10000" || fail "a hog of $HOG_MIB MiB on $device"

    mkdir -p /sys/fs/cgroup/hog
    sh -c 'echo $$ > /sys/fs/cgroup/hog/cgroup.procs
        GUEST_ROLE="hog 48 9 1000000000" exec ./program --exact plays_its_role --nocapture' > /tmp/said &
    hog=$!
    wait_until grep -q "are written" /tmp/said
    # EAGAIN where it finds less to take.
    echo 40M > /sys/fs/cgroup/hog/memory.reclaim
    [ "$(cat /sys/fs/cgroup/hog/memory.swap.current)" -gt 4194304 ] || fail "nothing was swapped out"
    kill -0 $hog || fail "the hog has ended too early"
    stop_server
    kill -0 $hog || fail "the hog did not survive swapoff"
    kill $hog
    wait $hog
    no_ghosts
done
