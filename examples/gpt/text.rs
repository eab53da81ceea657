//! Texts as numbers: a fixed alphabet, Markdown without its marks, and windows to train on.

use std::error::Error;
use std::path::{Path, PathBuf};

use nn::kernels::philox::Philox;

/// Characters that the model knows: a line's end and printable ASCII. The shapes of the model need the number when it is compiled.
pub(crate) const VOCAB: usize = 96;

/// The number of a character of the alphabet.
fn id(c: u8) -> Option<u32> {
    match c {
        b'\n' => Some(0),
        b' '..=b'~' => Some(u32::from(c - b' ') + 1),
        _ => None,
    }
}

/// The character of a number.
pub(crate) fn character(id: u32) -> char {
    match u8::try_from(id) {
        Ok(id @ 1..96) => char::from(id - 1 + b' '),
        _ => '\n',
    }
}

/// A text in the alphabet, and how many characters had no place in it. What looks alike is taken instead.
pub(crate) fn encode(text: &str) -> (Vec<u32>, usize) {
    let (mut ids, mut dropped) = (Vec::with_capacity(text.len()), 0);
    for c in text.chars() {
        let ascii = match c {
            '\t' | '\u{a0}' => " ",
            '‘' | '’' => "'",
            '“' | '”' => "\"",
            '–' => "-",
            '—' => "--",
            '…' => "...",
            'à' | 'â' | 'ä' => "a",
            'è' | 'é' | 'ê' | 'ë' => "e",
            'ç' => "c",
            'î' | 'ï' => "i",
            'ô' | 'ö' => "o",
            'ù' | 'û' | 'ü' => "u",
            'É' => "E",
            'æ' => "ae",
            'œ' => "oe",
            // A line's end on Windows is two characters.
            '\r' => "",
            _ => {
                let known = u8::try_from(c).ok().and_then(id);
                dropped += usize::from(known.is_none());
                ids.extend(known);
                continue;
            }
        };
        ids.extend(ascii.bytes().filter_map(id));
    }
    (ids, dropped)
}

/// The text of simple Markdown: without the marks of headings, of emphasis and of breaks, and without backslashes before a mark.
pub(crate) fn plain(markdown: &str) -> String {
    let mut text = String::with_capacity(markdown.len());
    for line in markdown.lines() {
        let line = line.trim_end();
        let heading = line.trim_start_matches('#');
        // Seven are no heading, and neither are those that a word follows.
        let is_heading = line.len() - heading.len() <= 6 && heading.starts_with(' ');
        let mut chars = if is_heading { heading.trim_start() } else { line }.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' => text.extend(chars.next_if(char::is_ascii_punctuation).or(Some(c))),
                '*' | '_' => {}
                _ => text.push(c),
            }
        }
        text.push('\n');
    }
    text
}

/// What to train on and what to test on.
pub(crate) struct Corpus {
    pub(crate) train: Vec<u32>,
    pub(crate) held_out: Vec<u32>,
    /// What is held out, in words.
    pub(crate) split: String,
    /// Characters outside the alphabet.
    pub(crate) dropped: usize,
}

impl Corpus {
    /// Reads the texts (`.md`, `.txt`) below a folder. Of ten or more every tenth is held out, of fewer the last tenth of all.
    pub(crate) fn read(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let mut paths = Vec::new();
        list(folder, &mut paths)?;
        paths.sort();
        let mut texts = Vec::new();
        let mut dropped = 0;
        for path in &paths {
            let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let markdown = path.extension().is_some_and(|e| e == "md");
            let (mut ids, lost) = encode(&if markdown { plain(&text) } else { text });
            ids.extend([0, 0]);
            dropped += lost;
            texts.push(ids);
        }
        if texts.len() < 10 {
            return Ok(Self { dropped, ..Self::tail(texts.concat()) });
        }
        let (mut train, mut held_out, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (path, ids)) in paths.iter().zip(texts).enumerate() {
            if i % 10 == 9 {
                held_out.extend(ids);
                names.extend(path.file_stem().map(|name| name.to_string_lossy()));
            } else {
                train.extend(ids);
            }
        }
        let split = format!("{} of {} texts ({})", names.len(), paths.len(), names.join(", "));
        Ok(Self { train, held_out, split, dropped })
    }

    /// With the last tenth of a text held out.
    pub(crate) fn tail(mut train: Vec<u32>) -> Self {
        let held_out = train.split_off(train.len() - train.len() / 10);
        Self { train, held_out, split: "the last tenth".to_owned(), dropped: 0 }
    }

    /// The loss of one who knows how often each character comes in what there is to train on, and nothing else. Each is counted once
    /// more than it comes, so that none is impossible.
    pub(crate) fn unigram(&self) -> f64 {
        let mut counts = [1_u32; VOCAB];
        self.train.iter().for_each(|id| counts[*id as usize] += 1);
        let total = (self.train.len() + VOCAB) as f64;
        let nats = |id: &u32| (total / f64::from(counts[*id as usize])).ln();
        self.held_out.iter().map(nats).sum::<f64>() / self.held_out.len() as f64
    }
}

/// Every text below a folder.
fn list(folder: &Path, to: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, to)?;
        } else if path.extension().is_some_and(|e| e == "md" || e == "txt") {
            to.push(path);
        }
    }
    Ok(())
}

/// A text cut into windows of one length, each with the characters that follow its own.
pub(crate) struct Windows<'a> {
    pub(crate) text: &'a [u32],
    pub(crate) length: usize,
}

impl Windows<'_> {
    /// How many there are, wherever the first begins.
    pub(crate) fn count(&self) -> usize {
        self.text.len().saturating_sub(self.length) / self.length
    }

    /// Where the first begins in an epoch, so that no epoch cuts the text as another does.
    pub(crate) fn offset(&self, epoch: u64) -> usize {
        Philox::new(0, epoch).below(self.length as u32) as usize
    }

    /// Windows by number, and for each character the one to be found.
    pub(crate) fn gather(&self, offset: usize, indices: &[usize], x: &mut Vec<u32>, target: &mut Vec<u32>) {
        x.clear();
        target.clear();
        for index in indices {
            let from = offset + index * self.length;
            x.extend_from_slice(&self.text[from..from + self.length]);
            target.extend_from_slice(&self.text[from + 1..from + self.length + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(ids: &[u32]) -> String {
        ids.iter().map(|id| character(*id)).collect()
    }

    #[test]
    fn every_character_of_the_alphabet_comes_back() {
        let all: String = (0..VOCAB as u32).map(character).collect();
        assert_eq!((all.chars().count(), all.starts_with("\n !"), all.ends_with("}~")), (96, true, true));
        let (ids, dropped) = encode(&all);
        assert_eq!((ids, dropped), ((0..VOCAB as u32).collect(), 0));
    }

    #[test]
    fn what_is_not_in_the_alphabet_is_written_otherwise_or_dropped() {
        let (ids, dropped) = encode("“Où—là…”\r\n雪é");
        assert_eq!((decode(&ids).as_str(), dropped), ("\"Ou--la...\"\ne", 1));
    }

    #[test]
    fn markdown_loses_its_marks_and_nothing_else() {
        let markdown = "# Hamlet\n\n### SCENE I. A room.\n\n_Enter **GHOST**_  \n**HAMLET**  \nWho's there?\\--\n_\\[Aside]_ #1 a\\b\n#no";
        let text =
            "Hamlet\n\nSCENE I. A room.\n\nEnter GHOST\nHAMLET\nWho's there?--\n[Aside] #1 a\\b\n#no\n";
        assert_eq!(plain(markdown), text);
    }

    #[test]
    fn windows_cover_the_text_and_targets_are_the_next_characters() {
        for len in 8..20 {
            let text: Vec<u32> = (0..len).collect();
            let windows = Windows { text: &text, length: 4 };
            let (mut x, mut target) = (Vec::new(), Vec::new());
            let all: Vec<_> = (0..windows.count()).collect();
            for offset in 0..4 {
                windows.gather(offset, &all, &mut x, &mut target);
                assert!(x.iter().zip(&target).all(|(x, t)| x + 1 == *t));
                assert_eq!(x.len(), 4 * windows.count());
            }
            // Less than a window is left over, besides what an offset needs.
            assert!(text.len() - x.len() < 8);
        }
        assert_eq!(Windows { text: &[1, 2], length: 4 }.count(), 0);
    }

    #[test]
    fn a_tenth_is_held_out_and_unigrams_are_counted_in_the_rest() {
        let corpus = Corpus::tail([[1; 9], [2; 9]].concat());
        assert_eq!((corpus.train.len(), corpus.held_out.as_slice()), (17, &[2][..]));
        assert!((corpus.unigram() - (113_f64 / 9.0).ln()).abs() < 1e-12);
    }
}
