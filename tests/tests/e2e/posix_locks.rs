//! flock and fcntl locks between processes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use pando_tests::{spawn, sys};

use crate::Place;

/// Another process with the file open: one Python line in, one answer out.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const SCRIPT: &str = "
import fcntl, errno, struct, sys
f = open(sys.argv[1], 'r+b')
EX, SH, UN, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN, fcntl.LOCK_NB
def flock(how): fcntl.flock(f, how)
def lockf(how, start, length): fcntl.lockf(f, how, length, start)
def holder(start, length):
    ask = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, start, length, 0)
    kind, _, at, size, pid = struct.unpack('hhqqi4x', fcntl.fcntl(f, fcntl.F_GETLK, ask))
    return None if kind == fcntl.F_UNLCK else (at, size)
def ofd(start, length):
    fcntl.fcntl(f, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, start, length, 0))
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except OSError as e:
        print(errno.errorcode[e.errno], flush=True)
";

impl Other {
    fn open(path: &Path) -> Other {
        let mut command = Command::new("python3");
        command.arg("-u").arg("-c").arg(SCRIPT).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn::spawn(command, libc::SIGKILL).expect("python3 is installed");
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Other { child, input, output }
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    #[track_caller]
    fn does(&mut self, line: &str, answer: &str) {
        self.send(line);
        assert_eq!(self.answer(), answer, "{line}");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn two(name: &str) -> (Place, Other, Other) {
    let place = Place::new(name);
    let path = place.path("file");
    std::fs::write(&path, [0; 100]).unwrap();
    (place, Other::open(&path), Other::open(&path))
}

#[test]
fn flock_excludes_and_shares() {
    let (_place, mut a, mut b) = two("flock");
    a.does("flock(EX)", "None");
    b.does("flock(EX|NB)", "EAGAIN");
    b.does("flock(SH|NB)", "EAGAIN");
    a.does("flock(SH)", "None");
    b.does("flock(SH|NB)", "None");
    b.does("flock(EX|NB)", "EAGAIN");
    a.does("flock(UN)", "None");
    b.does("flock(EX|NB)", "None");
    a.does("flock(SH|NB)", "EAGAIN");
    b.does("f.close()", "None");
    a.does("flock(EX|NB)", "None");
}

#[test]
fn fcntl_locks_are_by_range() {
    let (_place, mut a, mut b) = two("fcntl");
    a.does("lockf(EX, 10, 20)", "None");
    b.does("lockf(EX|NB, 0, 10)", "None");
    b.does("lockf(EX|NB, 30, 0)", "None");
    b.does("lockf(EX|NB, 29, 1)", "EAGAIN");
    b.does("holder(0, 100)", "(10, 20)");
    a.does("lockf(UN, 15, 5)", "None");
    b.does("lockf(SH|NB, 15, 5)", "None");
    b.does("lockf(SH|NB, 14, 1)", "EAGAIN");
    a.does("lockf(SH|NB, 15, 5)", "None");
    a.does("lockf(EX|NB, 15, 5)", "EAGAIN");
    a.does("holder(0, 5)", "(0, 10)");
    a.does("ofd(40, 5)", "EAGAIN");
    b.does("lockf(UN, 0, 0)", "None");
    a.does("holder(0, 100)", "None");
}

#[test]
fn a_waiting_lock_is_granted_when_the_holder_ends() {
    for lock in ["flock(EX)", "lockf(EX, 0, 0)"] {
        let (_place, mut a, mut b) = two(&format!("waiting_{}", &lock[..5]));
        a.does(lock, "None");
        b.send(lock);
        let (told, answer) = mpsc::channel();
        let waiter = b.child.id();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = told.send(b.answer());
            });
            let early = answer.recv_timeout(Duration::from_millis(200));
            a.child.kill().unwrap();
            a.child.wait().unwrap();
            let granted = answer.recv_timeout(Duration::from_secs(10));
            sys::signal(waiter, libc::SIGKILL).unwrap(); // so that the scope ends, whatever came
            assert!(early.is_err(), "{lock} was granted twice");
            assert_eq!(granted.as_deref(), Ok("None"), "{lock}");
        });
    }
}
