//! Every counter and gauge of a run, declared once: name, unit, kind and meaning.
//!
//! From here come the fields in the shared memory, the statistics that `ramfold run --stats`
//! writes, and the tables of docs/stats.md (`tests/reference.rs` says how to make those anew).
//!
//! A declaration begins with where the value is kept:
//!
//! | | |
//! |---|---|
//! | `limit` | a gauge of the session; the launcher sets it |
//! | `maximum` | of the session: the largest value of a gauge so far |
//! | `total` | a counter of the session |
//! | `gauge` | in each process; the statistics have the sum over those that live |
//! | `counter` | in each process; the statistics have the sum over all, also those that ended |
//! | `derived` | nowhere: it is calculated of the other statistics |
//! | `quantile`, `histogram` | of the times that faults took, which each process records |
//! | `name` | the codec of the session |

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ramfold_store::ObjectRing;
use ramfold_sys::robust::OwnedWord;

use crate::histogram::Histogram;
use crate::layout::{PROCESSES_MAX, SpillArea, counters, process, session};
use crate::messages::{MESSAGES_MAX, Message};
use crate::metric::{Metric, MetricKind, Section, Source, Unit, sum_of_counter, sum_of_gauge};
use crate::segments::SegmentSet;
use crate::statistics::resident_bytes;
use crate::watch::WatchArea;

macro_rules! metric {
    ($kind:ident, $unit:ident, $name:ident, $help:literal, $source:expr) => {
        Metric {
            name: stringify!($name),
            kind: MetricKind::$kind,
            unit: Unit::$unit,
            help: $help,
            source: $source,
        }
    };
}

/// A metric that is a field of the session.
macro_rules! of_session {
    ($kind:ident, $unit:ident, $name:ident, $help:literal) => {
        metric!(
            $kind,
            $unit,
            $name,
            $help,
            Source::Session(|session| session.$name.load(Ordering::Relaxed))
        )
    };
}

macro_rules! schema {
    ($(
        $title:literal $note:literal {
            $(
                $(limit $limit:ident $limit_unit:ident $limit_help:literal)?
                $(maximum $max:ident $max_unit:ident $max_help:literal)?
                $(total $total:ident $total_unit:ident $total_help:literal)?
                $(gauge $gauge:ident $gauge_unit:ident $gauge_help:literal)?
                $(counter $counter:ident $counter_unit:ident $counter_help:literal)?
                $(derived $derived:ident $derived_unit:ident $derived_help:literal)?
                $(quantile $quantile:ident $share:literal $quantile_help:literal)?
                $(histogram $histogram:ident $histogram_help:literal)?
                $(name $codec:ident $codec_help:literal)?
                ;
            )*
        }
    )*) => {
        counters! { $($($($counter $counter_help)?)*)* }
        process! { $($($($gauge $gauge_help)?)*)* }
        session! {
            limits { $($($($limit $limit_help)?)*)* }
            totals { $($( $($max $max_help)? $($total $total_help)? )*)* }
        }

        /// All metrics, in the order of the statistics.
        pub static SECTIONS: &[Section] = &[$(
            Section {
                title: $title,
                note: $note,
                metrics: &[$(
                    $(of_session!(Gauge, $limit_unit, $limit, $limit_help))?
                    $(of_session!(Maximum, $max_unit, $max, $max_help))?
                    $(of_session!(Counter, $total_unit, $total, $total_help))?
                    $(metric!(
                        Gauge, $gauge_unit, $gauge, $gauge_help,
                        Source::Session(|session| sum_of_gauge(session, |process| &process.$gauge))
                    ))?
                    $(metric!(
                        Counter, $counter_unit, $counter, $counter_help,
                        Source::Session(|session| sum_of_counter(session, |all| &all.$counter))
                    ))?
                    $(metric!(
                        Gauge, $derived_unit, $derived, $derived_help, Source::Derived($derived)
                    ))?
                    $(metric!(
                        Quantile, Nanoseconds, $quantile, $quantile_help, Source::Quantile($share)
                    ))?
                    $(metric!(
                        Histogram, Nanoseconds, $histogram, $histogram_help, Source::Histogram
                    ))?
                    $(metric!(Name, None, $codec, $codec_help, Source::Codec))?
                    ,
                )*],
            },
        )*];

        /// How many metrics there are.
        pub(crate) const METRIC_COUNT: usize = {
            let (mut count, mut section) = (0, 0);
            while section < SECTIONS.len() {
                count += SECTIONS[section].metrics.len();
                section += 1;
            }
            count
        };
    };
}

schema! {
    "Memory" "" {
        limit memory_cap_bytes Bytes
            "the cap, as `--memory` or the default gave it";
        limit target_bytes Bytes
            "what the processes should cost now: the cap, or less where files need the room";
        name codec
            "the codec that `--codec` names";
        gauge cost_bytes Bytes
            "anonymous memory in RAM, ramfold's own included, with shared memory and page tables \
             as below; after a fork a shared page counts by its share";
        maximum cost_bytes_max Bytes
            "the largest `cost_bytes`";
        gauge shared_bytes Bytes
            "shared memory (`MAP_SHARED` without a file, memfd, System V, tmpfs) that is mapped \
             and in RAM: it is not compressed, and counts in `cost_bytes` by half of the cap at \
             most";
        gauge page_table_bytes Bytes
            "page tables of the processes, which stay when pages are evicted: they count in \
             `cost_bytes`, together with shared memory by half of the cap at most";
        maximum over_cap_bytes_max Bytes
            "the most by which the cost went over the cap";
        derived resident_bytes Bytes
            "of the cost: pages the program has uncompressed (cost less pool, metadata, staging \
             and page tables)";
        gauge pool_used_bytes Bytes
            "slots in use in the pool";
        gauge pool_reserve_bytes Bytes
            "free spans kept ready";
        gauge pool_fragmentation_bytes Bytes
            "the rest of the pool: free slots, ends of spans";
        gauge pool_total_bytes Bytes
            "memory the pool has from the system: the sum of these three";
        gauge pool_spans Count
            "spans of 64 KiB that slots are in use in";
        maximum pool_bytes_max Bytes
            "the largest `pool_total_bytes`, of all processes together";
        gauge metadata_bytes Bytes
            "ramfold's tables, stacks and scratch memory";
        gauge staging_bytes Bytes
            "frames of pages that wait to be compressed";
        gauge pages_staging Pages
            "pages that wait to be compressed: the length of that queue";
        gauge compressed_bytes Bytes
            "objects in the pool, without the waste of their slots";
        gauge pages_stored Pages
            "pages that are compressed or same-filled. `pages_stored` x 4096 / `compressed_bytes` \
             is the compression ratio of stored pages";
    }

    "Processes" "" {
        total processes_started Count
            "processes an agent was loaded into";
        total processes_activated Count
            "of these: came near the cap, so that their memory was looked after";
    }

    "Faults" "" {
        counter faults Count
            "traps on registered memory that reached ramfold, first touches included";
        counter faults_zero_filled Count
            "of these: pages never touched before";
        counter pages_zero_filled_ahead Pages
            "zero pages supplied beyond the one that was touched, to a program that grows page by page";
        counter faults_stalled Count
            "times a fault waited because the cap was reached";
        counter fault_ns_total Nanoseconds
            "what all faults have cost the program: the time from reading a fault's message to \
             having answered it, and 5 us for the kernel's part of each";
        quantile fault_ns_p50 0.5
            "the time from reading a fault's message to having answered it, which half of the \
             faults did not exceed. The kernel's part, 5 us and more, is not in it";
        quantile fault_ns_p99 0.99
            "the same for 99 % of the faults";
        quantile fault_ns_p999 0.999
            "the same for 99.9 % of the faults";
        histogram fault_ns_histogram
            "the same in full: pairs of a time and how many faults took so long or less, and \
             longer than the time of the pair before";
    }

    "Pages" "" {
        counter pages_staged Pages
            "taken from the program into staging";
        counter pages_swapped_out Pages
            "compressed, or found same-filled, and taken out of RAM";
        counter pages_swapped_in Pages
            "brought back from the pool or the spill file";
        counter pages_cold Pages
            "with `--cold-after`: pages taken because the probe of their block had not come back for \
             that time; the probes are not counted";
        counter cold_probes Pages
            "pages taken to see whether they come back: one of a block of 64";
        counter pages_prefetched Pages
            "of those brought back: ahead of a stream of faults, before they were asked for";
        counter pages_prefetch_wasted Pages
            "of these: brought in last by a stream that did not go on";
        counter pages_second_chance Pages
            "brought back from staging, before they were compressed";
        counter pages_same_filled Pages
            "of those swapped out: one repeated word, which costs no object";
        counter pages_incompressible Pages
            "put back because an object would have saved less than a quarter";
        counter pages_raw Pages
            "with `--spill`: stored as they are for that reason, to go to the spill file";
        counter compress_in_bytes Bytes
            "given to the codec, same-filled pages left out";
        counter compress_out_bytes Bytes
            "what the codec made of these";
        counter refused_busy Pages
            "pages left alone: pinned by I/O";
        counter refused_shared Pages
            "pages left alone: a forked relative has them too";
        counter refused_mapping Pages
            "pages left alone: locked, or not writable";
        counter pages_unshared Pages
            "pages that a fork had shared, made the process's own again to be taken";
        counter pages_written_shared Pages
            "pages that a fork had shared and that were protected until a process wrote to them";
        counter objects_kept Count
            "objects kept though their pages came back, because a forked relative shares the pool";
        counter objects_kept_freed Count
            "of these: freed when nothing was shared any more, before their pages were taken again";
    }

    "The spill file" "Zero without `--spill`." {
        gauge pages_in_spill Pages
            "pages whose objects are in the file; they are not among `pages_stored`";
        gauge spill_bytes Bytes
            "bytes of the file that these take, encryption and rounding included";
        gauge spill_queue_bytes Bytes
            "bytes of the pool, of pages that do not compress, that are to go there next, with \
             what is being written: the length of that queue";
        gauge spill_reads_under_way Count
            "reads of the file under way";
        counter pages_spilled Pages
            "pages whose objects have gone there";
        counter spill_writes Count
            "batches written";
        counter spill_write_bytes Bytes
            "bytes of these";
        counter pages_spill_moved Pages
            "pages moved within the file, to make room";
        counter spill_hits Pages
            "pages brought back from there; they are among `pages_swapped_in`";
        counter spill_reads Count
            "reads of the file; one can bring several pages of a stream";
        counter spill_read_ns_total Nanoseconds
            "what these reads took, from reading the fault's message to the answer";
        counter spill_errors Count
            "times that the file was full, or could not be read or written";
    }

    "Events and forks" "" {
        counter events_remove Count
            "changes of the address space by madvise(2) that the kernel reported";
        counter events_unmap Count
            "the same by munmap(2)";
        counter events_remap Count
            "the same by mremap(2)";
        counter events_early Count
            "of these: reported before an earlier change that they depend on";
        counter forks_taken_over Count
            "forks whose child got an agent at once";
        counter forks_filled Count
            "children that were given all their memory uncompressed instead: cloned without the C \
             library, or no longer allowed a userfaultfd";
        counter pages_filled_for_child Pages
            "pages given to those";
    }

    "How reclaim went" "" {
        counter reclaim_direct Count
            "chunks of 64 pages compressed by the fault handler while a fault waited for room";
        counter reclaim_background Count
            "chunks of 64 pages compressed by the monitor";
        counter reclaim_left Count
            "times the monitor left taking pages to the fault handler";
        counter threads_stopped Count
            "times the first thread was stopped because it outran reclaim";
        counter threads_not_stopped Count
            "times it could not be";
        counter mapping_scans Count
            "looks at all mappings of the process";
        counter compactions Count
            "times the pool was compacted";
        counter recompress_tried Count
            "objects that were compressed once more, for density, because their pages had been out \
             for `--recompress-after`";
        counter pages_recompressed Pages
            "of these: those whose new object was smaller, and was stored";
        counter recompress_in_bytes Bytes
            "bytes of the objects that were replaced";
        counter recompress_out_bytes Bytes
            "bytes of the objects that replaced them";
        counter pool_reserve_misses Count
            "times the pool's reserve was empty";
        counter pool_refills_failed Count
            "times it could not be filled up";
        counter rejected_pool_full Pages
            "pages that the store refused, which stay with the program as `pages_incompressible` \
             do: no room in the pool";
        counter rejected_metadata_full Pages
            "the same: no room in its tables";
        counter rejected_no_memory Pages
            "the same: no memory from the system";
    }
}
