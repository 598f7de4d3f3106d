//! Faults of a network, made on purpose: loss, delay, cut. For tests; a pool without them pays nothing.
//!
//! Invariant: one seed and one order of calls give the same faults.

use std::sync::Mutex;
use std::time::Duration;

/// How often each fault happens, in calls of a thousand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    /// The request never reaches the server.
    pub lose_request: u32,
    /// The server carries the request out, but its answer never arrives.
    pub lose_answer: u32,
    /// The connection breaks after the request was sent: every call on it fails.
    pub cut: u32,
    /// The request waits before it is sent ...
    pub delay: u32,
    /// ... for this long.
    pub delay_for: Duration,
}

/// The faults of a pool.
#[derive(Debug)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rates: Rates,
    seed: u64,
}

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    LoseRequest,
    LoseAnswer,
    Cut,
    Delay(Duration),
}

impl Faults {
    /// Faults at these rates, drawn from a seed.
    pub fn new(seed: u64, rates: Rates) -> Faults {
        Faults { state: Mutex::new(State { rates, seed: seed | 1 }) }
    }

    /// From now on these rates.
    pub fn set(&self, rates: Rates) {
        self.state.lock().expect("no code panics while it holds this lock").rates = rates;
    }

    /// Draws the fate of one call.
    pub(crate) fn draw(&self) -> Fault {
        let mut state = self.state.lock().expect("no code panics while it holds this lock");
        // xorshift64: enough to spread faults, and the same everywhere.
        state.seed ^= state.seed << 13;
        state.seed ^= state.seed >> 7;
        state.seed ^= state.seed << 17;
        let mut left = (state.seed % 1000) as u32;
        let rates = state.rates;
        for (rate, fault) in [
            (rates.lose_request, Fault::LoseRequest),
            (rates.lose_answer, Fault::LoseAnswer),
            (rates.cut, Fault::Cut),
            (rates.delay, Fault::Delay(rates.delay_for)),
        ] {
            if left < rate {
                return fault;
            }
            left -= rate;
        }
        Fault::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_rates_hold() {
        let rates = Rates { lose_request: 100, cut: 50, ..Rates::default() };
        let draw = |seed| {
            let faults = Faults::new(seed, rates);
            (0..10_000).map(|_| faults.draw()).collect::<Vec<_>>()
        };
        let first = draw(5);
        assert_eq!(first, draw(5));
        assert_ne!(first, draw(99));
        let count = |f| first.iter().filter(|x| **x == f).count();
        assert!((800..1200).contains(&count(Fault::LoseRequest)), "{}", count(Fault::LoseRequest));
        assert!((350..650).contains(&count(Fault::Cut)), "{}", count(Fault::Cut));
        assert_eq!(count(Fault::LoseAnswer), 0);
    }
}
