# A server of swap is killed while programs have pages there.
forget_device
./ramfold block --size 128M --memory 48M --swap --device "$DEVICE" > /tmp/device &
server=$!
device_of
sh -c "$swapped_out_hog" > /tmp/said 2>&1 &
hog=$!
swap_out_hog
kill -STOP $hog
kill -9 $server
wait $server

# The next one takes away what is left, and has swap of its own.
mv /tmp/device /tmp/device.killed
./ramfold block --size 128M --memory 48M --swap --device "$DEVICE" > /tmp/device 2> /tmp/errors &
server=$!
device_of
cat /tmp/errors
killed=$(cat /tmp/device.killed)
grep -q "$killed was left by a killed server: removed" /tmp/errors || fail "nothing was taken away"
[ "$(wc -l < /proc/swaps)" = 2 ] || fail "not one swap area is on"
kill -CONT $hog
wait $hog
status=$?
cat /tmp/said
# SIGBUS, or SIGSEGV where the stack for its handler is gone too. 101 is a wrong byte.
[ $status = 135 ] || [ $status = 139 ] || fail "the hog's exit status is $status"
kill $server
wait $server || fail "the server's exit status"
no_ghosts
