//! A whole load in virtual time: a fixed number of clients, each of which asks again once it is answered.

use std::collections::HashMap;
use std::time::Duration;

use super::engine::{AddError, Engine};
use super::sequence::RequestId;
use super::step_time::StepTime;
use crate::workload::{Part, Prompt, Turn, Workload};

/// What one client saw of one request, all in virtual time since the start of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The session's index in the workload.
    pub index: u64,
    /// The turn of the session, from 0.
    pub turn: u32,
    pub asked: Duration,
    /// From asking to the first token.
    pub ttft: Duration,
    /// Between one token and the next.
    pub gaps: Vec<Duration>,
    pub prompt_len: u32,
}

impl Reply {
    #[must_use]
    pub fn finished(&self) -> Duration {
        self.asked + self.ttft + self.gaps.iter().sum::<Duration>()
    }

    #[must_use]
    pub fn output_len(&self) -> u64 {
        self.gaps.len() as u64 + 1
    }
}

struct Open {
    reply: Reply,
    last_token: Option<Duration>,
    user: User,
}

/// Someone in the middle of a session.
struct User {
    session: u64,
    turn: u32,
    /// What is still to be asked.
    turns: std::vec::IntoIter<Turn>,
}

/// Drives the first `requests` requests of the workload through the engine: of at most `concurrency` users at once, each
/// of whom asks the turns of a session one after the other and then begins the next. The replies come in the order in
/// which they finished.
///
/// There is no tokenizer: of a text, every four bytes are a token, equal bytes the same one. Images are none.
///
/// # Errors
/// When a request of the workload cannot be served with these settings.
pub fn drive(
    engine: &mut Engine,
    step_time: &StepTime,
    workload: &dyn Workload,
    requests: u64,
    concurrency: u64,
) -> Result<Vec<Reply>, AddError> {
    let mut now = Duration::ZERO;
    let (mut sent, mut next_session) = (0, 0);
    let mut open: HashMap<RequestId, Open> = HashMap::new();
    // Those who are to ask, and when; in the order in which they came to it.
    let mut waiting: Vec<(Duration, User)> = Vec::new();
    let mut replies = Vec::new();
    loop {
        while sent < requests && ((open.len() + waiting.len()) as u64) < concurrency.max(1) {
            let turns = workload.session(next_session).turns.into_iter();
            waiting.push((now, User { session: next_session, turn: 0, turns }));
            next_session += 1;
            ask(&mut waiting, now, requests, &mut sent, &mut open, engine)?;
        }
        ask(&mut waiting, now, requests, &mut sent, &mut open, engine)?;
        let Some(batch) = engine.step(now) else {
            // Nothing is to be computed: on to the next who has thought.
            match waiting.iter().map(|(due, _)| *due).min() {
                Some(due) if sent < requests => now = now.max(due),
                _ => break,
            }
            continue;
        };
        now += step_time.of(&batch.work);
        for event in engine.finish(&batch) {
            let Some(request) = open.get_mut(&event.id) else { continue };
            match request.last_token.replace(now) {
                None => request.reply.ttft = now.saturating_sub(request.reply.asked),
                Some(last) => request.reply.gaps.push(now.saturating_sub(last)),
            }
            if event.last
                && let Some(Open { reply, user, .. }) = open.remove(&event.id)
            {
                replies.push(reply);
                if let Some(turn) = user.turns.as_slice().first() {
                    waiting.push((now + turn.think, user));
                }
            }
        }
    }
    Ok(replies)
}

/// Sends the requests that are due.
fn ask(
    waiting: &mut Vec<(Duration, User)>,
    now: Duration,
    requests: u64,
    sent: &mut u64,
    open: &mut HashMap<RequestId, Open>,
    engine: &mut Engine,
) -> Result<(), AddError> {
    let mut at = 0;
    while at < waiting.len() && *sent < requests {
        if waiting[at].0 > now {
            at += 1;
            continue;
        }
        let (_, mut user) = waiting.remove(at);
        let Some(Turn { request, .. }) = user.turns.next() else { continue };
        let prompt = tokens(request.prompt);
        let id = RequestId(*sent);
        engine.add(id, &prompt, request.output_len, now)?;
        let prompt_len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let (index, turn) = (user.session, user.turn);
        user.turn += 1;
        let reply = Reply { index, turn, asked: now, ttft: Duration::ZERO, gaps: Vec::new(), prompt_len };
        open.insert(id, Open { reply, last_token: None, user });
        *sent += 1;
    }
    Ok(())
}

fn tokens(prompt: Prompt) -> Vec<u32> {
    let of = |text: &str, tokens: &mut Vec<u32>| {
        let token = |bytes: &[u8]| bytes.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
        tokens.extend(text.as_bytes().chunks(4).map(token));
    };
    let mut tokens = Vec::new();
    match prompt {
        Prompt::Tokens(tokens) => return tokens,
        Prompt::Text(text) => of(&text, &mut tokens),
        Prompt::Messages(messages) => {
            for part in messages.iter().flat_map(|message| &message.content) {
                if let Part::Text(text) = part {
                    of(text, &mut tokens);
                }
            }
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::tests::settings;
    use crate::twin::{DevicePreset, Settings, test_model};
    use crate::workload::{Length, Random, Spec, Surroundings, Think};

    fn throughput(max_num_seqs: u32) -> f64 {
        let settings = Settings {
            max_num_seqs,
            max_model_len: 1024,
            max_num_batched_tokens: 2048,
            block_size: 16,
            num_blocks: 20_000,
            ..settings()
        };
        let step_time = StepTime::new(&test_model(), DevicePreset::find("h100").unwrap(), &settings).unwrap();
        let workload = Random { input_len: 200, output_len: 50, vocab_size: 1000, seed: 1 };
        let mut engine = Engine::new(settings).unwrap();
        let replies = drive(&mut engine, &step_time, &workload, 64, 32).unwrap();
        assert_eq!(replies.len(), 64);
        assert!(replies.iter().all(|reply| reply.output_len() == 50 && reply.prompt_len == 200));
        let end = replies.iter().map(Reply::finished).max().unwrap();
        64.0 * 50.0 / end.as_secs_f64()
    }

    #[test]
    fn a_user_thinks_before_the_next_turn_and_then_asks_with_the_history() {
        let settings = Settings { max_model_len: 1024, num_blocks: 2000, ..settings() };
        let step_time = StepTime::new(&test_model(), DevicePreset::find("h100").unwrap(), &settings).unwrap();
        let exact = Length::Exact;
        let spec = Spec::Conversation {
            turns: exact(3),
            system_len: 0,
            first_len: exact(20),
            user_len: exact(10),
            output_len: exact(5),
            think: Think::Fixed(Duration::from_secs(3)),
        };
        let surroundings = Surroundings { vocab_size: Some(1000), takes_tokens: true, ..Surroundings::default() };
        let workload = spec.build(&surroundings).unwrap();
        let mut engine = Engine::new(settings).unwrap();
        let replies = drive(&mut engine, &step_time, &*workload, 5, 1).unwrap();
        let seen: Vec<_> = replies.iter().map(|reply| (reply.index, reply.turn, reply.prompt_len)).collect();
        assert_eq!(seen, [(0, 0, 20), (0, 1, 35), (0, 2, 50), (1, 0, 20), (1, 1, 35)]);
        let pause = |at: usize| replies[at].asked.saturating_sub(replies[at - 1].finished());
        assert_eq!([1, 2, 3].map(pause), [Duration::from_secs(3), Duration::from_secs(3), Duration::ZERO]);
    }

    #[test]
    fn equal_texts_are_equal_tokens() {
        assert_eq!(tokens(Prompt::Text("abcdefgh!".to_owned())).len(), 3);
        let begin = tokens(Prompt::Text("abcdefgh".to_owned()));
        assert!(tokens(Prompt::Text("abcdefgh and more".to_owned())).starts_with(&begin));
    }

    #[test]
    fn few_sequences_starve_a_load_that_offers_more() {
        let (few, enough) = (throughput(4), throughput(32));
        assert!(enough > 4.0 * few, "{few} {enough}");
        assert!(throughput(64) > 0.98 * enough, "more than is offered changes little");
    }
}
