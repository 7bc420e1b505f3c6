# `ramfold block --swap` under a program that memory does not hold, and its end while a program has
# pages there.
forget_device
swapped_out() { sed -n 's/^pswpout //p' /proc/vmstat; }
# Nothing but swap is swapped to.
mke2fs /dev/vda > /dev/null || fail mke2fs
sum() { head -c 1M /dev/vda | md5sum; }
before=$(sum)
./ramfold block --swap --backing /dev/vda 2> /tmp/refused && fail "what was on the disk is lost"
grep "is no swap area" /tmp/refused || fail "it was not looked at"
[ "$(sum)" = "$before" ] || fail "the disk has changed"
limit() { cat "/sys/block/${device#/dev/}/queue/max_sectors_kb"; }
mkswap /dev/vda > /dev/null
./ramfold block --swap $OPTIONS --stats /tmp/stats > /tmp/device &
server=$!
device_of
grep -q "^$device " /proc/swaps || fail "$device is not on"
play "hog $HOG_MIB $SEED 2000" || fail "a hog of $HOG_MIB MiB on $device, seed $SEED"
kill -0 $server || fail "the server has ended"
case $device in /dev/nbd*) [ "$(limit)" = 32 ] || fail "requests are of $(limit) KiB" ;; esac
[ "$(swapped_out)" -gt 8192 ] || fail "less than 32 MiB went to swap"
if echo "$OPTIONS" | grep -q backing; then
    kill -USR2 $server
    wait_until grep -q backing_reads /tmp/stats
    grep -E '"backing_reads": [1-9]' /tmp/stats || fail "nothing came from the disk"
    grep -E '"evicted_pages": [1-9]' /tmp/stats || fail "nothing left the cache"
fi

sh -c "$swapped_out_hog" > /tmp/said &
hog=$!
swap_out_hog
kill $server
wait $server || fail "the server's exit status"
kill -0 $hog || fail "the hog did not survive swapoff"
kill $hog
wait $hog
# Writes may fail where the server gets no memory in time: the kernel keeps such pages.
grep -E 'no_room_errors|write_errors|written_back_pages' /tmp/stats
no_ghosts
case $device in /dev/nbd*) [ "$(limit)" -gt 32 ] || fail "requests stay at $(limit) KiB" ;; esac
