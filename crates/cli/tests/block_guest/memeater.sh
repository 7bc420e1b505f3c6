# How much a program is given that asks until it is refused: with `ramfold block --swap`, and
# without.
eaten() {
    play "memeater 5" > /tmp/said || fail memeater >&2
    sed -n 's/^memeater: \([0-9]*\) MiB$/\1/p' /tmp/said
}
# The kernel promises no more than 30 % of its memory and the swap space.
echo 30 > /proc/sys/vm/overcommit_ratio
echo 2 > /proc/sys/vm/overcommit_memory
without=$(eaten) || exit 1
echo 0 > /proc/sys/vm/overcommit_memory
forget_device
./ramfold block --size 80M --memory 64M --codec auto --swap > /tmp/device &
server=$!
device_of
echo 2 > /proc/sys/vm/overcommit_memory
grep -E "CommitLimit|Committed_AS" /proc/meminfo
with=$(eaten) || exit 1
echo 0 > /proc/sys/vm/overcommit_memory
echo "memeater has $without MiB without swap, $with MiB with it"
kill -0 $server || fail "the server has ended"
kill $server
wait $server || fail "the server's exit status"
[ "$without" -ge 16 ] || fail "not even 16 MiB"
[ "$with" -ge $((2 * without)) ] || fail "less than twice as much"
no_ghosts
