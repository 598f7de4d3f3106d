//! Sizes on the command line and on the screen.

/// Bytes of `4096`, `256M`, `256MiB`, `2g`: units are powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(format!("'{text}' is no size; write it like 256M or 2G")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("'{text}' is no size; write it like 256M or 2G"))
}

/// For people: `1.5 GiB`.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("256M", 256 << 20), ("1 GiB", 1 << 30), ("2k", 2048), ("1T", 1 << 40)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "M", "-1", "1.5G", "1X", "99999999999T"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!((show(1023), show(1536), show(u64::MAX)), ("1023 B".into(), "1.5 KiB".into(), "16.0 EiB".into()));
    }
}
