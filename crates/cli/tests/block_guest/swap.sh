# `ramfold block --swap` under a program that memory does not hold, and its end while a program has
# pages there.
echo +memory > /sys/fs/cgroup/cgroup.subtree_control || fail "there is no control of memory"
forget_device
./ramfold block --size 256M --memory 64M --codec auto --swap --stats /tmp/stats > /tmp/device &
server=$!
device_of
grep -q "^$device " /proc/swaps || fail "$device is not on"
play "hog $HOG_MIB $SEED 2000" || fail "a hog of $HOG_MIB MiB on $device, seed $SEED"
kill -0 $server || fail "the server has ended"

mkdir -p /sys/fs/cgroup/hog
sh -c 'echo $$ > /sys/fs/cgroup/hog/cgroup.procs
    GUEST_ROLE="hog 40 9 1000000000" exec ./program --exact plays_its_role --nocapture' > /tmp/said &
hog=$!
wait_until grep -q "are written" /tmp/said
# EAGAIN where it finds less to take.
echo 32M > /sys/fs/cgroup/hog/memory.reclaim
[ "$(cat /sys/fs/cgroup/hog/memory.swap.current)" -gt 4194304 ] || fail "nothing was swapped out"
kill -0 $hog || fail "the hog has ended too early"
kill $server
wait $server || fail "the server's exit status"
kill -0 $hog || fail "the hog did not survive swapoff"
kill $hog
wait $hog
# Writes may fail where the server gets no memory in time: the kernel keeps such pages.
grep no_room_errors /tmp/stats
is_gone "$device" || fail "$device is still there"
no_ghosts
