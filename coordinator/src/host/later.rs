//! What the engine is to be told once something else is done: whoever is done with it says so, and nobody else has to
//! wake up in between.

use florin_protocol::{Rejection, Tick};
use tokio::sync::{mpsc, oneshot};

use super::turn::Asked;
use super::{Command, Host, Question, Written, stopping};
use florin_engine::{Engine, Event};

/// An event and a question behind it, on their way.
pub struct Later {
    commands: mpsc::Sender<Command>,
    both: Box<[Command; 2]>,
}

/// What comes of them.
pub struct Outcome<T> {
    written: oneshot::Receiver<Result<Written, Rejection>>,
    answer: oneshot::Receiver<T>,
}

impl Later {
    /// Tells the engine, from any thread and without waiting.
    ///
    /// # Errors
    /// Nothing was told, and here it is again: the engine's queue is full, or it has stopped.
    pub fn tell(self) -> Result<(), Self> {
        let Self { commands, both } = self;
        if let Ok(permits) = commands.try_reserve_many(both.len()) {
            for (permit, command) in permits.zip(*both) {
                permit.send(command);
            }
            return Ok(());
        }
        Err(Self { commands, both })
    }

    /// Tells the engine, as soon as there is room in its queue.
    ///
    /// # Errors
    /// [`Code::Internal`](florin_protocol::Code::Internal) when it has stopped.
    pub async fn tell_in_turn(self) -> Result<(), Rejection> {
        for command in *self.both {
            self.commands.send(command).await.map_err(|_| stopping())?;
        }
        Ok(())
    }
}

impl<T> Outcome<T> {
    /// Waits for the answer, given behind the event when that is durable.
    ///
    /// # Errors
    /// As [`Host::write`]; [`Code::Internal`](florin_protocol::Code::Internal) too if nobody told the engine.
    pub async fn comes(self) -> Result<T, Rejection> {
        let Self { mut written, answer } = self;
        // The answer comes last, so that waiting for it alone wakes us once.
        let answer = answer.await;
        written.try_recv().map_err(|_| stopping())??;
        answer.map_err(|_| stopping())
    }
}

impl Host {
    /// An event, and a question that is answered when that is durable, for somebody to tell the engine of.
    #[must_use]
    pub fn later<T: Send + 'static>(
        &self,
        event: Event,
        question: impl FnOnce(&Engine, Tick) -> T + Send + 'static,
    ) -> (Later, Outcome<T>) {
        let (told, written) = oneshot::channel();
        let (asked, answer) = oneshot::channel();
        let question: Question = Box::new(move |engine, now| {
            // Nobody listens any more if the connection is gone.
            let _ = asked.send(question(engine, now));
        });
        let write = Command::Ask(Asked::Write(Box::new(event)), told);
        let commands = self.mailbox.commands.clone();
        // The engine answers questions behind what came before them.
        let later = Later { commands, both: Box::new([write, Command::Read(question)]) };
        (later, Outcome { written, answer })
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::Code;

    use super::*;

    fn later(commands: &mpsc::Sender<Command>) -> Later {
        Later { commands: commands.clone(), both: Box::new([Command::Wake, Command::Stop]) }
    }

    #[tokio::test]
    async fn where_there_is_no_room_for_both_nothing_is_told_until_there_is() {
        let (commands, mut queue) = mpsc::channel(3);
        assert!(later(&commands).tell().is_ok());
        let full = later(&commands).tell().expect_err("one place is left, and it takes two");
        assert_eq!(queue.len(), 2);
        let waiting = tokio::spawn(full.tell_in_turn());
        for _ in 0..2 {
            assert!(matches!(queue.recv().await, Some(Command::Wake)));
            assert!(matches!(queue.recv().await, Some(Command::Stop)));
        }
        waiting.await.unwrap().unwrap();
        drop(queue);
        let stopped = later(&commands).tell().expect_err("nobody hears it");
        assert_eq!(stopped.tell_in_turn().await.unwrap_err().code, Code::Internal);
    }

    #[tokio::test]
    async fn an_answer_is_that_of_the_event_even_where_the_question_was_answered() {
        let rejection = || Rejection::new(Code::Conflicting, "another one was taken");
        let outcome = |written: Option<Result<Written, Rejection>>, answer: Option<u8>| {
            let (send_written, receive_written) = oneshot::channel();
            let (send_answer, receive_answer) = oneshot::channel();
            written.map(|written| send_written.send(written).ok());
            answer.map(|answer| send_answer.send(answer).ok());
            Outcome { written: receive_written, answer: receive_answer }
        };
        let taken = Written { now: Tick(1), verdict: florin_engine::Verdict::New };
        assert_eq!(outcome(Some(Ok(taken)), Some(7)).comes().await, Ok(7));
        assert_eq!(outcome(Some(Err(rejection())), Some(7)).comes().await, Err(rejection()));
        assert_eq!(outcome(Some(Err(rejection())), None).comes().await, Err(rejection()));
        for (written, answer) in [(None, Some(7)), (None, None), (Some(Ok(taken)), None)] {
            let lost = outcome(written, answer).comes().await.unwrap_err();
            assert_eq!(lost.code, Code::Internal, "nobody was told");
        }
    }
}
