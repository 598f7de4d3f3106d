//! A store that misbehaves on demand, for tests of everything above it.
//!
//! It sits below the retries and above the real store ([`crate::Store::with_faults`]), so that what it injects is
//! handled exactly as if the store had done it. Without a rule it changes nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// An object is stored.
    Put,
    /// A part of an object is read.
    Get,
    /// An object is deleted.
    Delete,
    /// Objects are listed.
    List,
}

/// How the store misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It answers later by this much; other faults of the same call still happen.
    Slow(Duration),
    /// It is too busy and says so; a later try may succeed.
    Refuse,
    /// It does not accept the credentials.
    Deny,
    /// It has no space left.
    Full,
    /// It does what it is asked, but the answer is lost; a later try may succeed.
    LoseAnswer,
    /// It says that the object does not exist.
    Forget,
    /// One bit of what is read is wrong.
    Corrupt,
    /// The last byte of what is read is missing.
    Cut,
}

/// A shared list of the faults to come.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    calls: [u64; 4],
}

#[derive(Debug)]
struct Rule {
    operation: Operation,
    fault: Fault,
    left: u32,
}

impl Faults {
    /// No faults yet.
    pub fn new() -> Faults {
        Faults::default()
    }

    /// From now on, the next `times` calls of `operation` meet `fault`; [`u32::MAX`] is for ever.
    pub fn inject(&self, operation: Operation, fault: Fault, times: u32) {
        self.lock().rules.push(Rule { operation, fault, left: times });
    }

    /// The store is well again.
    pub fn clear(&self) {
        self.lock().rules.clear();
    }

    /// How often `operation` was tried, retries included.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.lock().calls[operation as usize]
    }

    /// Counts a call, and takes what it shall meet.
    pub(crate) fn take(&self, operation: Operation) -> Vec<Fault> {
        let mut state = self.lock();
        state.calls[operation as usize] += 1;
        let mut met = Vec::new();
        for rule in state.rules.iter_mut().filter(|rule| rule.operation == operation && rule.left > 0) {
            met.push(rule.fault);
            if rule.left != u32::MAX {
                rule.left -= 1;
            }
        }
        state.rules.retain(|rule| rule.left > 0);
        met
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a reader gets when its call met `faults`.
pub(crate) fn spoil(faults: &[Fault], bytes: Bytes) -> Bytes {
    let mut bytes = bytes;
    if faults.contains(&Fault::Corrupt) && !bytes.is_empty() {
        let mut copy = BytesMut::from(&bytes[..]);
        copy[0] ^= 0x10;
        bytes = copy.freeze();
    }
    if faults.contains(&Fault::Cut) {
        bytes.truncate(bytes.len().saturating_sub(1));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_met_as_often_as_injected() {
        let faults = Faults::new();
        faults.inject(Operation::Get, Fault::Refuse, 2);
        faults.inject(Operation::Get, Fault::Slow(Duration::ZERO), u32::MAX);
        assert_eq!(faults.take(Operation::Put), []);
        assert_eq!(faults.take(Operation::Get), [Fault::Refuse, Fault::Slow(Duration::ZERO)]);
        assert_eq!(faults.take(Operation::Get).len(), 2);
        assert_eq!(faults.take(Operation::Get), [Fault::Slow(Duration::ZERO)]);
        assert_eq!((faults.calls(Operation::Get), faults.calls(Operation::Put)), (3, 1));
        faults.clear();
        assert_eq!(faults.take(Operation::Get), []);
    }
}
