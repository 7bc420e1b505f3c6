# `ramfold block --backing --device ublk` is killed while a file system on it is written to.
serve="./ramfold block --backing /disk/data --memory 16M --device ublk"
truncate -s 96M /disk/data

# Written through: the next server takes the device over, and writers see nothing of that.
forget_device
$serve --write-through > /tmp/device & server=$!
kill_while_written
# A server that would lose writes is refused, as is one of another size, and nothing changes.
$serve -- true 2> /tmp/said && fail "a server that writes back took the file"
cat /tmp/said
grep -q "^ramfold: $device .* waits .*--write-through" /tmp/said || fail "not said what waits"
$serve --write-through --size 64M -- true 2> /tmp/said && fail "a smaller server took the file"
# One that has nothing to do with it leaves it alone.
./ramfold block --size 4M --device ublk -- true 2> /tmp/said || fail "another server"
grep -q "^ramfold: $device waits" /tmp/said || fail "not said what waits"
# So does one without a device, unless it would change the file.
./ramfold block --size 4M -- true 2> /tmp/said || fail "a server without a device"
grep -q "^ramfold: $device waits .*--write-through" /tmp/said || fail "not said what waits"
cached="./ramfold block --backing /disk/data --memory 16M"
$cached --write-through -- true 2> /tmp/said && fail "a server without a device took the file"
grep -q "^ramfold: $device of a server .* waits" /tmp/said || fail "not said what waits"
$cached --read-only -- true || fail "a server that only reads"
kill -0 "$writer" || fail "the writer has ended without a server"
for round in 1 2; do
    forget_device
    old=$device
    $serve --write-through > /tmp/device 2> /tmp/said & server=$!
    device_of
    cat /tmp/said
    [ "$device" = "$old" ] || fail "$device is a new device"
    grep -q "^ramfold: took over $device of a server that was killed" /tmp/said || fail unsaid
    [ $round = 2 ] || { kill -9 $server; wait $server; }
done
wait "$writer" || fail "the writer's exit status"
nothing_is_missing
kill $server
wait $server || fail "the server's exit status"
no_ghosts
./e2fsck -fn /disk/data || fail "e2fsck finds errors in the file"

# Written back: what had not reached the file is lost, so the device ends, with errors.
forget_device
$serve > /tmp/device & server=$!
kill_while_written
wait "$writer" && fail "the writer saw no error"
$serve -- true 2> /tmp/said || fail "the next server"
cat /tmp/said
grep -q "^ramfold: $device .* removed, as writes .* lost" /tmp/said || fail "not said why"
umount /mnt || umount -l /mnt || fail umount
no_ghosts

# A device whose file is gone can have no other server.
forget_device
$serve --write-through > /tmp/device & server=$!
device_of
kill -9 $server
wait $server
mv /disk/data /disk/moved
./ramfold block --size 4M --device ublk -- true 2> /tmp/said || fail "another server"
cat /tmp/said
grep -q "^ramfold: $device .* removed, as its backing is gone" /tmp/said || fail "not removed"
no_ghosts
