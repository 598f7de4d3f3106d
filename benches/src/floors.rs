//! The least that a version must reach, and whether it does.
//!
//! A floor is a multiple of what JuiceFS over Redis makes in the same run, or a figure of its own.

use serde_json::{Value, json};

use crate::cluster;
use crate::report::Results;
use crate::targets::{JUICEFS, PANDO};

/// One floor and what came.
#[derive(Debug)]
pub struct Floor {
    metric: String,
    /// In words.
    wanted: String,
    least: Option<f64>,
    got: Option<f64>,
}

impl Floor {
    /// `None`: one side was not measured.
    fn reached(&self) -> Option<bool> {
        Some(self.got? >= self.least?)
    }

    pub fn json(&self) -> Value {
        json!({"metric": self.metric, "floor": self.wanted, "least": self.least, "got": self.got, "reached": self.reached()})
    }
}

/// Metric and multiple of JuiceFS.
const RELATIVE: [(&str, f64); 6] = [
    ("create, 1 thread", 2.0),
    ("create, 8 threads", 2.0),
    ("tar -x, files of 0.5-8 KiB", 3.0),
    ("create+write 4 KiB+fsync, 1 thread", 3.0),
    ("create+write 4 KiB+fsync, 8 threads", 3.0),
    ("write 1 GiB with fsync", 1.0),
];

/// Metric and figure.
const ABSOLUTE: [(&str, f64); 1] = [(crate::engine::CREATE, 100_000.0)];

/// Share of the bare groups' rate.
const REPLICATED_SHARE: f64 = 0.5;

pub fn check(results: &Results) -> Vec<Floor> {
    let relative = RELATIVE.map(|(metric, factor)| Floor {
        metric: metric.into(),
        wanted: format!("{factor} x juicefs"),
        least: results.median(metric, JUICEFS).map(|theirs| theirs * factor),
        got: results.median(metric, PANDO),
    });
    let absolute = ABSOLUTE.map(|(metric, least)| Floor {
        metric: metric.into(),
        wanted: format!("{least}"),
        least: Some(least),
        got: results.median(metric, PANDO),
    });
    // Of what consensus alone makes on as many nodes, half must be left for the whole metadata path.
    let replicated = cluster::WRITERS.map(|writers| {
        let metric = cluster::create_metric(cluster::NODES, writers);
        Floor {
            wanted: format!("{REPLICATED_SHARE} x raft alone"),
            least: results
                .median(&cluster::raft_metric(cluster::NODES, writers), PANDO)
                .map(|alone| alone * REPLICATED_SHARE),
            got: results.median(&metric, PANDO),
            metric,
        }
    });
    relative.into_iter().chain(absolute).chain(replicated).collect()
}

pub fn print(floors: &[Floor]) {
    println!("\n{:<38} {:>14} {:>10} {:>10}  floor", "", "wanted", "least", "got");
    let show = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
    for floor in floors {
        let verdict = match floor.reached() {
            Some(true) => "reached",
            Some(false) => "NOT REACHED",
            None => "not measured",
        };
        println!(
            "{:<38} {:>14} {:>10} {:>10}  {verdict}",
            floor.metric,
            floor.wanted,
            show(floor.least),
            show(floor.got)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_reached_at_its_figure_and_unknown_without_a_peer() {
        let mut results = Results::default();
        results.add("create, 1 thread", "ops/s", PANDO, 200.0);
        results.add("create, 1 thread", "ops/s", JUICEFS, 100.0);
        results.add("write 1 GiB with fsync", "MiB/s", PANDO, 200.0);
        let floors = check(&results);
        let reached = |metric| floors.iter().find(|floor| floor.metric == metric).and_then(Floor::reached);
        assert_eq!(reached("create, 1 thread"), Some(true));
        assert_eq!(reached("write 1 GiB with fsync"), None);
        results.add("create, 1 thread", "ops/s", JUICEFS, 101.0);
        assert_eq!(check(&results)[0].reached(), Some(false));
    }
}
