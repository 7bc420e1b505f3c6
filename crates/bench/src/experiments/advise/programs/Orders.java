import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/** Orders of customers, made, looked up and replaced: SEED COUNT ROUNDS. */
public class Orders {
    record Order(int number, String what, double price) {}

    public static void main(String[] arguments) {
        Random random = new Random(Long.parseLong(arguments[0]));
        int count = Integer.parseInt(arguments[1]);
        int rounds = Integer.parseInt(arguments[2]);
        Map<Integer, List<Order>> byCustomer = new HashMap<>();
        int customers = count / 5 + 1;
        for (int number = 0; number < count; number++) {
            byCustomer
                    .computeIfAbsent(random.nextInt(customers), unused -> new ArrayList<>())
                    .add(new Order(number, "article " + random.nextInt(1000), random.nextDouble()));
        }
        double sum = 0;
        for (int round = 0; round < rounds; round++) {
            for (int nth = 0; nth < count / 2; nth++) {
                List<Order> orders = byCustomer.get(random.nextInt(customers));
                if (orders == null) continue;
                int at = random.nextInt(orders.size());
                Order order = orders.get(at);
                sum += order.price();
                if (nth % 4 == 0) {
                    orders.set(at, new Order(order.number() + 1, order.what(), order.price()));
                }
            }
        }
        System.out.printf("%.6f%n", sum);
    }
}
