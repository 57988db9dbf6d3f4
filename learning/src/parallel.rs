//! A parallel map over independent tasks, with results in order.
//!
//! The threads belong to one call, and tasks start in their order. With a shared pool, as in rayon,
//! concurrent calls would compete for one number of threads, and a pool per call costs twice the
//! processor time of these scoped threads.

use std::sync::{Mutex, OnceLock};

/// Number of processors available to this program; 1 if the system does not report it. The result
/// is cached: the query reads several files, which takes as long as the checks of a small update.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Runs `work` on every task, on up to `threads` threads, and returns the results in the order of
/// the tasks. Tasks must be independent; then the result does not depend on the number of threads.
pub fn parallel_map<T: Send, R: Send>(
    threads: usize,
    tasks: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if threads <= 1 || tasks.len() <= 1 {
        return tasks.into_iter().map(work).collect();
    }
    let workers = threads.min(tasks.len());
    let waiting = Mutex::new(tasks.into_iter().enumerate());
    let one_worker = || {
        let mut done = Vec::new();
        loop {
            // A worker that panicked with the lock held has left the iterator intact.
            let next = waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
            let Some((at, task)) = next else { return done };
            done.push((at, work(task)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (1..workers).map(|_| scope.spawn(one_worker)).collect();
        // The calling thread is one of the workers, since it would only wait.
        let mut done = one_worker();
        for handle in handles {
            done.extend(handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|&(at, _)| at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::parallel_map;

    #[test]
    fn results_are_in_the_order_of_the_tasks() {
        for threads in [0, 1, 2, 7, 200] {
            let squares = parallel_map(threads, (0..100).collect(), |task: usize| task * task);
            assert_eq!(squares, (0..100).map(|task| task * task).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_in_a_task_propagates_to_the_caller() {
        let run = || parallel_map(3, vec![1, 0, 2, 3], |task: i32| 6 / task);
        assert!(std::panic::catch_unwind(run).is_err());
    }
}
