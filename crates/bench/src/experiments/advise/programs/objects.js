// Objects in an array and in a map, gone over and looked up: SEED COUNT PASSES.
const [seed, count, passes] = process.argv.slice(2).map(Number);
let state = seed;
const next = () => (state = (state * 1103515245 + 12345) % 2147483648) >>> 8;
const users = [];
for (let id = 0; id < count; id++) {
    users.push({ id, name: "user " + next(), values: [id, next() % 100, id / 3] });
}
const byName = new Map(users.map((user) => [user.name, user]));
let sum = 0;
for (let pass = 0; pass < passes; pass++) {
    for (const user of users) sum += user.values[pass % 2];
    for (let nth = 0; nth < count / 2; nth++) {
        const user = users[next() % count];
        sum += byName.get(user.name).values[1];
        user.values = [user.id, pass, nth / 3];
    }
}
console.log(Math.round(sum));
