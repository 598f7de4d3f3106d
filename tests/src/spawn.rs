//! Processes that die with the test run.
//!
//! Invariant: every child is started by one thread that lives as long as the test process. The kernel ties the parent-death
//! signal to the thread that forked, so a child started by a test's own thread would be told to stop when that test ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;

type Job = (Command, mpsc::SyncSender<io::Result<Child>>);

/// Starts `command` in a process group of its own; it gets `at_death` if this process dies, however that happens.
pub fn spawn(mut command: Command, at_death: libc::c_int) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in queue {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    command.process_group(0);
    // SAFETY: prctl is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(move || match libc::prctl(libc::PR_SET_PDEATHSIG, at_death) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let (answer, result) = mpsc::sync_channel(1);
    spawner
        .lock()
        .expect("no holder panics")
        .send((command, answer))
        .expect("the spawner lives as long as the process");
    result.recv().expect("the spawner answers every job")
}
