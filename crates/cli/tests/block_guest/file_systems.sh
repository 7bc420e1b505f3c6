# File systems whose files are changed in all ways, at random, and their checkers.
seed=1
steps=800
# Changes files on $device, which has a file system at /mnt, by two programs at the same time.
begin_to_exercise() {
    GUEST_ROLE="exercise /mnt/a $seed $steps" ./program --exact plays_its_role --nocapture & first=$!
    GUEST_ROLE="exercise /mnt/b 9$seed $steps" ./program --exact plays_its_role --nocapture &
    second=$!
}
end_to_exercise() {
    wait $first || fail "the first program on $1"
    wait $second || fail "the second program on $1"
}
# Whether a file system that was unmounted has what was left there.
all_is_there() {
    mount "$device" /mnt || fail "mount $1"
    play "exercised /mnt/a $seed $steps" || fail "a file on $1"
    play "exercised /mnt/b 9$seed $steps" || fail "a file on $1"
}
has_both() { [ -s /mnt/a ] && [ -s /mnt/b ]; }

# xfs on a cache before a file: the server is killed meanwhile, and another takes over.
truncate -s 320M /disk/data
serve="./ramfold block --backing /disk/data --memory 8M --write-through --device ublk"
forget_device
$serve > /tmp/device & server=$!
device_of
./mkfs.xfs -q "$device" || fail mkfs.xfs
mount -o discard "$device" /mnt || fail "mount xfs"
begin_to_exercise
wait_until has_both
kill -9 $server
wait $server
kill -0 $first || fail "the first program has ended before the server"
kill -0 $second || fail "the second program has ended before the server"
forget_device
$serve > /tmp/device & server=$!
device_of
end_to_exercise xfs
umount /mnt || fail "umount xfs"
./xfs_repair -n "$device" > /tmp/said 2>&1 || { cat /tmp/said; fail "xfs_repair finds errors"; }
all_is_there xfs
umount /mnt || fail "umount xfs"
kill $server
wait $server || fail "the server's exit status"
no_ghosts
./xfs_repair -n -f /disk/data > /tmp/said 2>&1 || { cat /tmp/said; fail "errors in the file"; }
rm /disk/data

# btrfs, which has checksums of all data, on the disk in RAM. What is deleted takes no memory.
bytes_of() {
    rm -f /tmp/stats
    kill -USR2 $server
    wait_until test -s /tmp/stats
    sed -n 's/.*"cost_bytes": *\([0-9]*\).*/\1/p' /tmp/stats
}
forget_device
./ramfold block --size 256M --memory 64M --device ublk --stats /tmp/stats > /tmp/device & server=$!
device_of
empty=$(bytes_of)
./mkfs.btrfs -q "$device" > /tmp/said 2>&1 || { cat /tmp/said; fail mkfs.btrfs; }
mount "$device" /mnt || fail "mount btrfs"
begin_to_exercise
end_to_exercise btrfs
umount /mnt || fail "umount btrfs"
./btrfs check "$device" > /tmp/said 2>&1 || { cat /tmp/said; fail "btrfs check finds errors"; }
all_is_there btrfs
./btrfs scrub start -B /mnt > /tmp/said 2>&1 || { cat /tmp/said; fail "btrfs scrub"; }
full=$(bytes_of)
rm /mnt/a /mnt/b
sync
fstrim /mnt || fail fstrim
left=$(bytes_of)
umount /mnt || fail "umount btrfs"
echo "file_systems: $empty bytes empty, $full full, $left trimmed"
[ $((left - empty)) -lt $(((full - empty) / 4)) ] || fail "what was deleted takes memory"
kill $server
wait $server || fail "the server's exit status"
no_ghosts
