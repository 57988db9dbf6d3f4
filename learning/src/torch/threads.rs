//! The number of threads of libtorch's operators, on which the bits of some of them depend.

/// Sets the number for the calling thread.
///
/// libtorch has a number per thread, and one that was set last by any thread. A thread takes over the latter when
/// it first asks for its own. So this asks, and sets the number again: another thread that sets one of its
/// own in between changes nothing.
pub(crate) fn set_threads(threads: i32) {
    tch::set_num_threads(threads);
    let _of_any_thread = tch::get_num_threads();
    tch::set_num_threads(threads);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn another_thread_does_not_change_the_number() {
        // The numbers of a new thread are not set yet.
        let own = thread::spawn(|| {
            set_threads(1);
            thread::spawn(|| tch::set_num_threads(2)).join().unwrap();
            tch::get_num_threads()
        });
        assert_eq!(own.join().unwrap(), 1);
    }
}
