//! `cargo xtask ... | head`: a reader that has seen enough.

/// Ends the process, as other Unix tools do, when nobody reads its output any more. Rust's
/// default is to go on, and `println!` then panics.
pub fn end_quietly() {
    #[cfg(unix)]
    {
        unsafe extern "C" {
            fn signal(number: i32, handler: usize) -> usize;
        }
        const SIGPIPE: i32 = 13;
        const SIG_DFL: usize = 0;
        // SAFETY: C's `signal` with the default action, before any thread is started.
        unsafe { signal(SIGPIPE, SIG_DFL) };
    }
}
