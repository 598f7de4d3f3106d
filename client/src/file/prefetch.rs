//! Reading ahead: how far, decided by a pure policy over the reads of an inode.
//!
//! Not here: fetching (`reader.rs`) and keeping (`chunks.rs`). Invariants: at most [`STREAMS_MAX`] streams are followed; a window
//! grows only while a stream is followed, from [`WINDOW_MIN`] to [`WINDOW_MAX`] bytes; random reads fetch nothing ahead.

use std::ops::Range;

/// Fetches ahead that run at the same time, of the whole client.
pub(crate) const FETCHES_MAX: usize = 16;
/// Bytes of one fetch ahead: a small block.
pub(crate) const FETCH_BYTES: u64 = 4 << 20;
/// Streams followed in one inode: several readers of one file.
const STREAMS_MAX: usize = 8;
/// First window, in bytes.
const WINDOW_MIN: u64 = 1 << 20;
/// Largest window, in bytes.
const WINDOW_MAX: u64 = 64 << 20;
/// Reads of one stream may come this much out of order: the kernel's read-ahead asks in parallel.
const SLACK: u64 = 2 << 20;
/// Unrelated reads in a row after which reads are taken to be random.
const RANDOM_READS: u32 = 3;
/// A first read elsewhere than at the start is taken for a stream if it has this many bytes.
const STREAM_READ_BYTES: u64 = 128 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: Vec<Stream>,
    clock: u64,
    random: u32,
}

#[derive(Debug)]
struct Stream {
    /// End of the farthest read.
    end: u64,
    window: u64,
    /// Everything before this was fetched ahead or read.
    fetched: u64,
    used: u64,
}

impl Streams {
    /// A read of `length` bytes at `offset` of a file of `size` bytes: what to fetch ahead now, perhaps nothing.
    pub(crate) fn read(&mut self, offset: u64, length: u64, size: u64) -> Range<u64> {
        self.clock += 1;
        let clock = self.clock;
        let end = offset + length;
        let follows = |s: &&mut Stream| match s.window {
            0 => offset == s.end,
            window => offset + SLACK >= s.end && offset <= s.end + SLACK.min(window),
        };
        let stream = match self.streams.iter_mut().filter(follows).min_by_key(|s| s.end.abs_diff(offset)) {
            Some(stream) => {
                self.random = 0;
                if end > stream.end {
                    stream.window = (stream.window * 2).clamp(WINDOW_MIN, WINDOW_MAX);
                    stream.end = end;
                }
                stream
            }
            None => self.start(offset, end),
        };
        stream.used = clock;
        stream.ahead(size)
    }

    fn start(&mut self, offset: u64, end: u64) -> &mut Stream {
        if offset != 0 {
            self.random = self.random.saturating_add(1);
        }
        let is_stream = offset == 0 || (end - offset >= STREAM_READ_BYTES && self.random < RANDOM_READS);
        let window = if is_stream { WINDOW_MIN } else { 0 };
        if self.streams.len() >= STREAMS_MAX {
            let oldest = self.streams.iter().enumerate().min_by_key(|(_, s)| s.used).map_or(0, |(at, _)| at);
            self.streams.swap_remove(oldest);
        }
        self.streams.push(Stream { end, window, fetched: end, used: self.clock });
        self.streams.last_mut().expect("it was just pushed")
    }
}

impl Stream {
    /// The next part of the window, once half of what was fetched has been read.
    fn ahead(&mut self, size: u64) -> Range<u64> {
        let from = self.fetched.max(self.end);
        let to = (self.end + self.window).min(size);
        if to <= from || (from - self.end > self.window / 2 && to < size) {
            return 0..0;
        }
        self.fetched = to;
        from..to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 10 << 30;

    #[test]
    fn a_stream_gets_a_growing_window_and_every_byte_once() {
        let mut streams = Streams::default();
        let mut fetched_to = 128 << 10;
        let mut largest = 0;
        for n in 0..4000u64 {
            let ahead = streams.read(n * (128 << 10), 128 << 10, SIZE);
            if !ahead.is_empty() {
                assert_eq!(ahead.start, fetched_to.max((n + 1) * (128 << 10)));
                fetched_to = ahead.end;
                largest = largest.max(ahead.end - (n + 1) * (128 << 10));
            }
            assert!(fetched_to > n * (128 << 10));
        }
        assert_eq!(largest, WINDOW_MAX);
    }

    #[test]
    fn random_reads_fetch_nothing_ahead() {
        let mut streams = Streams::default();
        let mut at = 12345;
        for n in 0..1000 {
            at = (at * 6364136223846793005u64.wrapping_rem(1 << 30) + 1442695) % SIZE;
            let small = streams.read(at.max(1), 4096, SIZE);
            assert!(small.is_empty(), "read {n} at {at}");
        }
        let large = streams.read(SIZE / 2, 1 << 20, SIZE);
        assert!(large.is_empty());
    }

    #[test]
    fn eight_readers_of_one_file_are_followed_and_nothing_lies_beyond_the_end() {
        let mut streams = Streams::default();
        let mut bytes = [0; 8];
        for n in 0..200u64 {
            for reader in 0..8u64 {
                let ahead = streams.read(reader * (SIZE / 8) + n * (1 << 20), 1 << 20, SIZE);
                assert!(ahead.end <= SIZE);
                bytes[reader as usize] += ahead.end - ahead.start;
            }
        }
        assert!(bytes.iter().all(|b| *b > 100 << 20), "{bytes:?}");
        assert!(streams.streams.len() <= STREAMS_MAX);
    }

    #[test]
    fn the_parallel_reads_of_the_kernel_are_one_stream() {
        let mut streams = Streams::default();
        let mut fetched = 0;
        for n in 0..100u64 {
            for part in [1, 0, 3, 2] {
                let ahead = streams.read((n * 4 + part) << 18, 1 << 18, SIZE);
                fetched += ahead.end - ahead.start;
            }
        }
        assert_eq!(streams.streams.len(), 1);
        assert!(fetched > 90 << 20);
    }
}
