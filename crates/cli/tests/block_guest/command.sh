# `ramfold block --swap` under a program that checks its memory; SIGTERM undoes all of it.
./ramfold block --size 512M --memory 96M --codec auto --swap --stats /tmp/stats > /tmp/device &
server=$!
device_of
grep -q "^$device " /proc/swaps || fail "$device is not on"
play "hog 240 7 10000" || fail "a hog on $device"
kill -USR2 "$server"
wait_until [ -s /tmp/stats ]
grep -E '"(reads|writes|objects|compressed_bytes|cost_bytes|no_room_errors)"' /tmp/stats
grep -q '"no_room_errors": 0' /tmp/stats || fail "there was no room"
! grep -q '"writes": 0,' /tmp/stats || fail "nothing was swapped out"
kill "$server"
wait "$server" || fail "the server's exit status"
no_ghosts

# A device for a file system, and data on it.
./ramfold block --size 128M --memory 64M --device auto > /tmp/device2 &
server=$!
wait_until [ -s /tmp/device2 ]
device=$(cat /tmp/device2)
play "write $device 100 3" || fail "writing $device"
sync
echo 3 > /proc/sys/vm/drop_caches
play "check $device 100 3" | tee /tmp/said
grep -q "check: 25600 right 0 unreadable" /tmp/said || fail "checking $device"
kill "$server"
wait "$server" || fail "the server's exit status"
no_ghosts
