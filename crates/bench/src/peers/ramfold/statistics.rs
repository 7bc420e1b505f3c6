//! What `ramfold run --stats` writes.

use serde::{Deserialize, Serialize};

/// The statistics that reports repeat; others that the file has are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Statistics {
    pub(crate) memory_cap_bytes: Option<u64>,
    pub(crate) cost_bytes_max: Option<u64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) pool_used_bytes: Option<u64>,
    pub(crate) pool_total_bytes: Option<u64>,
    pub(crate) pool_bytes_max: Option<u64>,
    pub(crate) metadata_bytes: Option<u64>,
    pub(crate) staging_bytes: Option<u64>,
    pub(crate) pages_swapped_out: Option<u64>,
    pub(crate) pages_swapped_in: Option<u64>,
    pub(crate) pages_same_filled: Option<u64>,
    pub(crate) pages_incompressible: Option<u64>,
    /// Processes in which the agent was active.
    pub(crate) processes_activated: Option<u64>,
    pub(crate) faults: Option<u64>,
    pub(crate) fault_ns_p50: Option<u64>,
    pub(crate) fault_ns_p99: Option<u64>,
    pub(crate) compressed_bytes: Option<u64>,
    pub(crate) codec: Option<String>,
    pub(crate) over_cap_bytes_max: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_may_lack_and_exceed_what_is_known() {
        let text = r#"{"memory_cap_bytes": 5, "codec": "lz4", "later_addition": [1]}"#;
        let statistics: Statistics = serde_json::from_str(text).unwrap();
        assert_eq!(statistics.memory_cap_bytes, Some(5));
        assert_eq!(statistics.codec.as_deref(), Some("lz4"));
        assert_eq!(statistics.faults, None);
    }
}
