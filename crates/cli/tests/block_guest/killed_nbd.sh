# The server of a file system is killed: errors, and no wrong byte. What was synced is there again
# with another server.
forget_device
GUEST_ROLE="nbd 96 2 file=/disk/data" ./program --exact plays_its_role --nocapture & server=$!
kill_while_written
wait $writer && fail "the writer saw no error"
echo 3 > /proc/sys/vm/drop_caches
play "check /mnt/before 24 1" | tee /tmp/said
grep -q "check: .* unreadable" /tmp/said || fail "a wrong byte"
grep -q "check: 6144 right" /tmp/said && fail "data came from nowhere"
umount /mnt || umount -l /mnt || fail umount
play clean-up | tee /tmp/said
grep -q "^$device Removed" /tmp/said || fail "what the server left was not taken away"
no_ghosts

forget_device
GUEST_ROLE="nbd 96 2 file=/disk/data" ./program --exact plays_its_role --nocapture & server=$!
device_of
# The journal is replayed; nothing may be left to repair then.
mount -t ext4 "$device" /mnt || fail "mount after the kill"
play "check /mnt/before 24 1" | tee /tmp/said
grep -q "check: 6144 right 0 unreadable" /tmp/said || fail "what was synced"
umount /mnt || fail umount
./e2fsck -fn "$device" || fail "e2fsck finds errors"
stop_server
no_ghosts
