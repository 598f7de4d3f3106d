//! What goes to stdout: text for people, or one JSON value.
//!
//! Invariant: a reader that has gone (`pando status | head -1`) is no error.

use std::io::{self, Write};

use serde_json::Value;

/// Prints `json` as one line if asked for, else `text`.
pub fn print(as_json: bool, json: &Value, text: &str) -> anyhow::Result<()> {
    let mut out = if as_json { json.to_string() } else { text.trim_end().to_owned() };
    out.push('\n');
    let mut stdout = io::stdout().lock();
    match stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Two columns: names, and what they are.
pub fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// Rows of cells, the first of which are headings.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_under_their_headings() {
        let rows = [["id", "name"], ["1", "a"], ["100", "b"]].map(|row| row.map(str::to_owned));
        assert_eq!(columns(&rows), "id   name\n1    a\n100  b\n");
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(table(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2\n");
    }
}
