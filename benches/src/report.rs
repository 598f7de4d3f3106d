//! Samples, medians, the table and the JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::floors::Floor;
use crate::options::Options;
use crate::targets::{JUICEFS, LOCAL, PANDO};

/// Samples of one metric on one target.
#[derive(Debug)]
pub struct Row {
    pub metric: String,
    pub unit: &'static str,
    pub target: &'static str,
    pub samples: Vec<f64>,
}

impl Row {
    /// The middle sample; of an even number the mean of the middle two.
    pub fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
    }

    fn range(&self) -> (f64, f64) {
        self.samples.iter().fold((f64::MAX, f64::MIN), |(low, high), sample| (low.min(*sample), high.max(*sample)))
    }
}

/// All samples, in the order the metrics first came.
#[derive(Debug, Default)]
pub struct Results(Vec<Row>);

impl Results {
    pub fn add(&mut self, metric: &str, unit: &'static str, target: &'static str, sample: f64) {
        match self.0.iter_mut().find(|row| row.metric == metric && row.target == target) {
            Some(row) => row.samples.push(sample),
            None => self.0.push(Row { metric: metric.to_owned(), unit, target, samples: vec![sample] }),
        }
    }

    pub fn median(&self, metric: &str, target: &str) -> Option<f64> {
        self.0.iter().find(|row| row.metric == metric && row.target == target).map(Row::median)
    }
}

/// Medians of all targets and Pando's ratios to the others.
pub fn print(results: &Results) {
    println!(
        "\n{:<34} {:>9} {:>19} {:>10} {:>9} {:>9} {:>9}  unit",
        "median", PANDO, "(min - max)", LOCAL, JUICEFS, "x local", "x juicefs"
    );
    let mut shown: Vec<&str> = Vec::new();
    for row in &results.0 {
        if shown.contains(&row.metric.as_str()) {
            continue;
        }
        shown.push(&row.metric);
        let of = |target| results.0.iter().find(|other| other.metric == row.metric && other.target == target);
        let figure = |target| of(target).map_or("-".into(), |row| show(row.median()));
        let ratio = |target| match (of(PANDO), of(target)) {
            (Some(ours), Some(theirs)) => format!("{:.2}", ours.median() / theirs.median()),
            _ => "-".into(),
        };
        let range =
            of(PANDO).map_or(String::new(), |row| format!("({} - {})", show(row.range().0), show(row.range().1)));
        println!(
            "{:<34} {:>9} {:>19} {:>10} {:>9} {:>9} {:>9}  {}",
            row.metric,
            figure(PANDO),
            range,
            figure(LOCAL),
            figure(JUICEFS),
            ratio(LOCAL),
            ratio(JUICEFS),
            row.unit
        );
    }
}

fn show(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Writes the JSON file.
pub fn save(results: &Results, floors: &[Floor], machine: &Value, options: &Options) -> Result<PathBuf> {
    let rows: Vec<Value> = results
        .0
        .iter()
        .map(|row| {
            json!({"metric": row.metric, "unit": row.unit, "target": row.target, "median": row.median(), "samples": row.samples})
        })
        .collect();
    let floors: Vec<Value> = floors.iter().map(Floor::json).collect();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?.as_secs();
    let time = utc(seconds);
    let whole = json!({
        "time": time,
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "repetitions": options.repetitions,
        "scale": options.scale,
        "rows": rows,
        "floors": floors,
    });
    let default =
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("results").join(format!("{}.json", time.replace(':', "")));
    let path = options.json.clone().unwrap_or_else(default);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&path, serde_json::to_string_pretty(&whole)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// `2026-01-31T12:00:00Z` from seconds since 1970.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Civil date from a day count: years of 365.2425 days from March on, so that the leap day comes last.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_772_323_199), "2026-02-28T23:59:59Z");
        assert_eq!(utc(1_772_323_200), "2026-03-01T00:00:00Z");
    }

    #[test]
    fn a_median_is_the_middle() {
        let mut results = Results::default();
        for sample in [5.0, 1.0, 3.0, 9.0] {
            results.add("m", "ops/s", PANDO, sample);
        }
        assert_eq!(results.median("m", PANDO), Some(4.0));
        assert_eq!(results.median("m", LOCAL), None);
    }
}
