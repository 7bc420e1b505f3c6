# The server of a file system is killed while it is written to, and another takes the device over.
forget_device
GUEST_ROLE="ublk 96 recoverable file=/disk/data" ./program --exact plays_its_role --nocapture &
server=$!
kill_while_written
# Without a server all requests wait.
forget_device
GUEST_ROLE="clean-up" ./program --exact plays_its_role --nocapture | tee /tmp/said
grep -q "^$device Waiting" /tmp/said || fail "it does not wait for another server"
GUEST_ROLE="recover ${device#/dev/ublkb} /disk/data" ./program --exact plays_its_role --nocapture &
server=$!
device_of
wait $writer || fail "the writer's exit status"
nothing_is_missing
stop_server
no_ghosts

# Others do not wait: the device goes.
forget_device
GUEST_ROLE="ublk 64" ./program --exact plays_its_role --nocapture & server=$!
device_of
kill -9 $server
wait $server
play clean-up | tee /tmp/said
grep -q "^$device Removed" /tmp/said || fail "what the server left was not taken away"
no_ghosts
