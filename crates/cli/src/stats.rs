//! What a session's accounts say, as JSON.

use std::sync::atomic::{AtomicU64, Ordering};

use ramfold_pager::histogram::Quantiles;
use ramfold_pager::session::{Process, Session};
use serde_json::{Map, Value, json};

/// All processes of a session together. Counts are over all processes there were; amounts of memory
/// are what the living hold, and the last word of the program that was started.
pub fn of_session(session: &Session, program: u32) -> Value {
    session.bury_the_dead(program);
    let sum = |field: fn(&Process) -> &AtomicU64| -> u64 {
        session.used_processes().map(|process| field(process).load(Ordering::Relaxed)).sum()
    };
    let load = |value: &AtomicU64| value.load(Ordering::Relaxed);

    let pool_total = sum(|p| &p.pool_total_bytes);
    let metadata = sum(|p| &p.metadata_bytes);
    let staging = sum(|p| &p.staging_bytes);
    let cost = sum(|p| &p.cost_bytes);
    let tables = sum(|p| &p.page_table_bytes);
    let mut latency = Quantiles::default();
    session.retired_fault_ns.add_to(&mut latency);
    for process in session.used_processes() {
        process.fault_ns.add_to(&mut latency);
    }

    let mut values = Map::new();
    let mut put = |name: &str, value: Value| {
        values.insert(name.to_owned(), value);
    };
    put("memory_cap_bytes", json!(load(&session.memory_cap_bytes)));
    put("target_bytes", json!(load(&session.target_bytes)));
    put("codec", json!(session.codec().name()));
    put("cost_bytes", json!(cost));
    put("cost_bytes_max", json!(load(&session.cost_bytes_max)));
    put("shared_bytes", json!(sum(|p| &p.shared_bytes)));
    put("page_table_bytes", json!(tables));
    put("over_cap_bytes_max", json!(load(&session.over_cap_bytes_max)));
    put("resident_bytes", json!(cost.saturating_sub(pool_total + metadata + staging + tables)));
    put("pool_used_bytes", json!(sum(|p| &p.pool_used_bytes)));
    put("pool_reserve_bytes", json!(sum(|p| &p.pool_reserve_bytes)));
    put("pool_fragmentation_bytes", json!(sum(|p| &p.pool_fragmentation_bytes)));
    put("pool_total_bytes", json!(pool_total));
    put("pool_spans", json!(sum(|p| &p.pool_spans)));
    put("pool_bytes_max", json!(load(&session.pool_bytes_max)));
    put("metadata_bytes", json!(metadata));
    put("staging_bytes", json!(staging));
    put("pages_staging", json!(sum(|p| &p.pages_staging)));
    put("compressed_bytes", json!(sum(|p| &p.compressed_bytes)));
    put("pages_stored", json!(sum(|p| &p.pages_stored)));
    put("pages_in_spill", json!(sum(|p| &p.pages_in_spill)));
    put("spill_bytes", json!(sum(|p| &p.spill_bytes)));
    put("spill_queue_bytes", json!(sum(|p| &p.spill_queue_bytes)));
    put("spill_reads_under_way", json!(sum(|p| &p.spill_reads_under_way)));
    put("processes_started", json!(session.processes_started.load(Ordering::Relaxed)));
    put("processes_activated", json!(session.processes_activated.load(Ordering::Relaxed)));
    put("fault_ns_p50", json!(latency.quantile_ns(0.5)));
    put("fault_ns_p99", json!(latency.quantile_ns(0.99)));
    put("fault_ns_p999", json!(latency.quantile_ns(0.999)));
    put("fault_ns_histogram", json!(latency.buckets().collect::<Vec<_>>()));
    for counters in
        std::iter::once(&session.retired).chain(session.used_processes().map(|p| &p.counters))
    {
        counters.for_each(|name, value| {
            let total = values.entry(name).or_insert(json!(0u64));
            *total = json!(total.as_u64().unwrap_or(0) + value);
        });
    }
    Value::Object(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramfold_codec::Choice;
    use ramfold_pager::session::OwnedSession;

    #[test]
    fn every_field_is_documented_and_none_besides() {
        let session = OwnedSession::create(1 << 30, Choice::Auto).unwrap();
        session.claim(std::process::id()).unwrap();
        let stats = of_session(&session, std::process::id());
        let text = include_str!("../../../docs/stats.md");
        let mut documented: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .flat_map(|row| row.split(" |").next().unwrap_or("").split("`, `"))
            .map(|name| name.trim_matches('`'))
            .collect();
        let mut fields: Vec<_> = stats.as_object().unwrap().keys().map(String::as_str).collect();
        documented.sort_unstable();
        fields.sort_unstable();
        assert_eq!(documented, fields);
    }

    #[test]
    fn sums_over_processes_and_over_those_that_are_gone() {
        let session = OwnedSession::create(1 << 30, Choice::Auto).unwrap();
        let first = session.claim(std::process::id()).unwrap();
        first.counters.faults.store(3, Ordering::Relaxed);
        first.fault_ns.record(1000);
        let again = session.claim(std::process::id()).unwrap();
        again.counters.faults.store(4, Ordering::Relaxed);
        again.cost_bytes.store(100, Ordering::Relaxed);
        again.pool_total_bytes.store(30, Ordering::Relaxed);
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        session.claim(gone.id()).unwrap().cost_bytes.store(1000, Ordering::Relaxed);
        let stats = of_session(&session, std::process::id());
        assert_eq!(stats["faults"], 7);
        assert_eq!(stats["resident_bytes"], 70);
        assert_eq!(stats["memory_cap_bytes"], 1 << 30);
        assert_eq!(stats["codec"], "auto");
        assert!(stats["fault_ns_p50"].as_u64().unwrap() >= 1000);
    }
}
