//! File content that is known from a seed, so that a test need not keep what it wrote.
//!
//! Invariant: the same seed gives the same bytes, and two seeds differ within the first eight bytes.

/// `length` bytes that follow from `seed` alone.
pub fn seeded(seed: u64, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(length + 8);
    let mut random = Random::new(seed);
    while out.len() < length {
        out.extend_from_slice(&random.next().to_le_bytes());
    }
    out.truncate(length);
    out
}

/// A small generator for test choices (xorshift64*); not for secrets.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts a sequence.
    pub fn new(seed: u64) -> Random {
        // splitmix64: neighbouring seeds give unlike sequences, and the state is never zero.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((z ^ (z >> 31)) | 1)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// FNV-1a over the bytes, for naming content in messages and comparing trees.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

/// Where two byte strings first differ, in words fit for a panic; `None` if they are equal.
pub fn difference(got: &[u8], want: &[u8]) -> Option<String> {
    if got == want {
        return None;
    }
    let at = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(got.len().min(want.len()));
    Some(format!(
        "{} bytes instead of {}, first difference at {at}: {:?} instead of {:?}",
        got.len(),
        want.len(),
        &got[at..got.len().min(at + 8)],
        &want[at..want.len().min(at + 8)]
    ))
}
