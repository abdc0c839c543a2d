//! The bundled prompts, each with a check of its answer.
//!
//! They were written for this program. They are short, so that a small model on a CPU answers them in seconds, and of
//! several kinds, because a loss of precision shows in some of them first.

/// A prompt whose answer can be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedPrompt {
    pub(crate) question: &'static str,
    /// A reply is correct if its first line contains one of these as a whole word, in any case.
    answers: &'static [&'static str],
}

const fn prompt(question: &'static str, answers: &'static [&'static str]) -> CheckedPrompt {
    CheckedPrompt { question, answers }
}

/// The bundled prompts. The answers of a launch are stored in this order.
pub(crate) const PROMPTS: [CheckedPrompt; 64] = [
    // Arithmetic.
    prompt("What is 7 + 5?", &["12", "twelve"]),
    prompt("What is 9 - 4?", &["5", "five"]),
    prompt("What is 6 times 7?", &["42"]),
    prompt("What is 20 divided by 4?", &["5", "five"]),
    prompt("What is 15 + 27?", &["42"]),
    prompt("What is half of 18?", &["9", "nine"]),
    prompt("What is 100 - 1?", &["99"]),
    prompt("What is 3 times 3 times 3?", &["27"]),
    // Copies.
    prompt("Repeat this word: marble", &["marble"]),
    prompt("Repeat this number: 48151", &["48151"]),
    prompt("Repeat this word three times: blue", &["blue blue blue", "blue, blue, blue"]),
    prompt("Copy this text without a change: the small red boat", &["the small red boat"]),
    prompt("Write this word in capital letters: house", &["HOUSE"]),
    prompt("Repeat the last word of: apples pears plums", &["plums"]),
    // Spelling and letters.
    prompt("What is the first letter of the word tiger?", &["t"]),
    prompt("What is the last letter of the word ocean?", &["n"]),
    prompt("Spell the word cat, with a hyphen between letters.", &["c-a-t"]),
    prompt("Which letter follows D in the alphabet?", &["e"]),
    prompt("How many letters does the word lemon have?", &["5", "five"]),
    prompt("Write the plural of the word book.", &["books"]),
    // Counting and order.
    prompt("Continue the numbers: 2, 4, 6, 8,", &["10", "ten"]),
    prompt("Continue the numbers: 10, 9, 8, 7,", &["6", "six"]),
    prompt("Which number is larger, 31 or 13?", &["31"]),
    prompt("Which day follows Monday?", &["tuesday"]),
    prompt("Which month follows March?", &["april"]),
    prompt("How many days does a week have?", &["7", "seven"]),
    // Facts.
    prompt("What is the capital of France?", &["paris"]),
    prompt("What is the capital of Japan?", &["tokyo"]),
    prompt("What is the largest ocean of the Earth?", &["pacific"]),
    prompt("Which planet is closest to the Sun?", &["mercury"]),
    prompt("What is the chemical formula of water?", &["h2o"]),
    prompt("What colour has the sky on a clear day?", &["blue"]),
    prompt("How many legs does a spider have?", &["8", "eight"]),
    prompt("Who wrote the play Romeo and Juliet?", &["shakespeare"]),
    // Opposites, and structured text.
    prompt("What is the opposite of hot?", &["cold", "cool"]),
    prompt("What is the opposite of up?", &["down"]),
    prompt("Is ice colder than steam? Answer yes or no.", &["yes"]),
    prompt("Write a JSON object with the key a and the value 1.", &["\"a\": 1", "\"a\":1"]),
    prompt("Write a JSON array with the numbers 1, 2 and 3.", &["[1, 2, 3]", "[1,2,3]"]),
    prompt("Write the date 5 March 2021 in the form YYYY-MM-DD.", &["2021-03-05"]),
    // More of each kind.
    prompt("What is 8 times 9?", &["72"]),
    prompt("What is 50 + 50?", &["100"]),
    prompt("What is 81 divided by 9?", &["9", "nine"]),
    prompt("What is 13 - 6?", &["7", "seven"]),
    prompt("What is the double of 16?", &["32"]),
    prompt("Repeat this word: lantern", &["lantern"]),
    prompt("Repeat this number: 90210", &["90210"]),
    prompt("Copy this text without a change: green tea and bread", &["green tea and bread"]),
    prompt("Repeat the first word of: river stone cloud", &["river"]),
    prompt("What is the first letter of the word window?", &["w"]),
    prompt("Which letter precedes H in the alphabet?", &["g"]),
    prompt("How many letters does the word tree have?", &["4", "four"]),
    prompt("Continue the numbers: 5, 10, 15, 20,", &["25"]),
    prompt("Which number is smaller, 45 or 54?", &["45"]),
    prompt("Which day precedes Friday?", &["thursday"]),
    prompt("How many months does a year have?", &["12", "twelve"]),
    prompt("What is the capital of Italy?", &["rome"]),
    prompt("What is the capital of Egypt?", &["cairo"]),
    prompt("Which gas do plants take from the air?", &["carbon dioxide", "co2"]),
    prompt("How many sides does a triangle have?", &["3", "three"]),
    prompt("Which colour do blue and yellow paint give together?", &["green"]),
    prompt("What is the opposite of early?", &["late"]),
    prompt("Is the Moon larger than the Earth? Answer yes or no.", &["no"]),
    prompt("Write a JSON object with the key name and the value Ada.", &["\"name\": \"Ada\"", "\"name\":\"Ada\""]),
];

impl CheckedPrompt {
    /// Returns the text for an interface without chat templates.
    #[must_use]
    pub(crate) fn completion_text(&self) -> String {
        format!("Question: {}\nAnswer:", self.question)
    }

    /// Returns whether a reply is correct: the first of its lines that is not empty contains an answer.
    #[must_use]
    pub(crate) fn is_correct(&self, reply: &str) -> bool {
        let line = reply.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_lowercase();
        self.answers.iter().any(|answer| contains_word(&line, &answer.to_lowercase()))
    }

    /// Returns a correct answer.
    #[must_use]
    pub(crate) fn answer(&self) -> &'static str {
        self.answers.first().copied().unwrap_or_default()
    }
}

/// Returns the bundled prompt that this text contains.
#[must_use]
pub(crate) fn find_prompt(text: &str) -> Option<&'static CheckedPrompt> {
    PROMPTS.iter().find(|prompt| text.contains(prompt.question))
}

/// Returns whether `line` contains `word` with no letter or digit directly before or after it.
fn contains_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    line.match_indices(word).any(|(at, found)| {
        !is_part(line[..at].chars().next_back()) && !is_part(line[at + found.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_accepts_its_answer_and_refuses_an_empty_reply() {
        for prompt in &PROMPTS {
            assert!(prompt.is_correct(&format!(" The answer is {}.\nQuestion: next", prompt.answer())), "{prompt:?}");
            assert!(!prompt.is_correct("") && !prompt.is_correct("unknown"), "{prompt:?}");
        }
    }

    #[test]
    fn no_question_is_a_part_of_another_one() {
        for (place, prompt) in PROMPTS.iter().enumerate() {
            let found = find_prompt(&prompt.completion_text()).unwrap();
            assert_eq!(found, prompt);
            assert!(PROMPTS.iter().skip(place + 1).all(|other| !other.question.contains(prompt.question)));
        }
        assert_eq!(find_prompt("Hello"), None);
    }

    #[test]
    fn an_answer_is_a_whole_word_of_the_first_line() {
        let sum = PROMPTS[0];
        assert!(sum.is_correct("\n 12") && sum.is_correct("Twelve!"));
        assert!(!sum.is_correct("123") && !sum.is_correct("13\n12"));
    }
}
