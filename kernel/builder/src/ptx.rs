//! A small scanner of PTX text: comments, entries, parameters, words.
//!
//! It reads structure, not meaning: enough to place directives and to look for
//! what a shipped entry must not hold. Comments and strings are blanked out
//! first (same length, so offsets still point into the original), then braces
//! and words can be taken at face value.

use std::ops::Range;

/// Why a text is not usable PTX. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No `.version` directive: some other kind of file.
    #[error("this is not PTX: it has no .version directive")]
    NoVersion,
    /// No `.target` directive.
    #[error("the PTX has no .target directive")]
    NoTarget,
    /// A comment or a string runs to the end of the file.
    #[error("line {line}: this {what} never ends")]
    Open {
        /// Where it begins.
        line: usize,
        /// `comment` or `string`.
        what: &'static str,
    },
    /// Something is missing from an entry.
    #[error("line {line}: {what}")]
    Entry {
        /// Where.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

/// A scanned file.
#[derive(Clone, Debug)]
pub struct Module<'a> {
    /// The original text.
    pub text: &'a str,
    /// The text with comments and strings blanked.
    masked: String,
    /// `.version`, such as `8.4`.
    pub version: String,
    /// The first word of `.target`, such as `sm_90a`.
    pub target: String,
    /// Its entries, in order.
    pub entries: Vec<Entry>,
    /// Its comments, in order: where each begins, and its text without the marks.
    pub comments: Vec<(usize, String)>,
}

/// One `.entry` with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Offset of the word `.entry`.
    pub at: usize,
    /// Its parameters, in order.
    pub params: Vec<ParamDecl>,
    /// From the end of the parameter list to the opening brace: performance directives.
    pub directives: Range<usize>,
    /// From the opening brace to the closing one, both included.
    pub body: Range<usize>,
}

/// One `.param` of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamDecl {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Where the number of its `.align N` stands.
    pub align: Option<Range<usize>>,
    /// Where a missing `.align` would go: after `.param`.
    pub after_param: usize,
}

/// A word of the masked text: letters, digits and `_ $ % .`, and the `::` of
/// `.shared::cta`. A single `:` ends a label, and the word: `loop:bra` is two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'m> {
    /// Its offset.
    pub at: usize,
    /// Its text.
    pub text: &'m str,
}

impl Word<'_> {
    /// The offset behind it.
    pub fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

impl<'a> Module<'a> {
    /// Scans a whole file.
    pub fn scan(text: &'a str) -> Result<Module<'a>, Error> {
        let (masked, comments) = mask(text)?;
        let after = |directive: &str| {
            let mut words = words(&masked, 0..masked.len());
            words.find(|word| word.text == directive)?;
            words.next().map(|word| word.text.to_owned())
        };
        let version = after(".version").ok_or(Error::NoVersion)?;
        let target = after(".target").ok_or(Error::NoTarget)?;
        let mut entries = Vec::new();
        let mut from = 0;
        while let Some(word) = words(&masked, from..masked.len()).find(is_entry) {
            let entry = entry(text, &masked, word)?;
            from = entry.as_ref().map_or(word.end(), |entry| entry.body.end);
            entries.extend(entry);
        }
        Ok(Module {
            text,
            masked,
            version,
            target,
            entries,
            comments,
        })
    }

    /// The words in a range, comments and strings left out.
    pub fn words(&self, range: Range<usize>) -> impl Iterator<Item = Word<'_>> {
        words(&self.masked, range)
    }

    /// The first byte at or behind an offset that is neither blank nor in a comment.
    pub fn after_blanks(&self, at: usize) -> Option<u8> {
        let rest = &self.masked.as_bytes()[at..];
        rest.iter()
            .copied()
            .find(|byte| !byte.is_ascii_whitespace())
    }

    /// The comments in a range: offset and text.
    pub fn comments(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &str)> {
        self.comments
            .iter()
            .filter(move |(at, _)| range.contains(at))
            .map(|(at, text)| (*at, text.as_str()))
    }

    /// The line, counted from 1, that an offset lies on.
    pub fn line(&self, at: usize) -> usize {
        line(self.text, at)
    }
}

fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
        + 1
}

type Comments = Vec<(usize, String)>;

/// Blanks comments and strings, byte for byte, and collects the comments.
fn mask(text: &str) -> Result<(String, Comments), Error> {
    let bytes = text.as_bytes();
    let mut masked = bytes.to_vec();
    let mut comments = Vec::new();
    let mut blank = |range: Range<usize>| {
        for byte in &mut masked[range] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    };
    let find = |from: usize, what: &[u8]| {
        bytes[from..]
            .windows(what.len())
            .position(|window| window == what)
            .map(|at| from + at)
    };
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (end, inside) = if rest.starts_with(b"//") {
            let end = find(at, b"\n").unwrap_or(bytes.len());
            (end, Some(at + 2..end))
        } else if rest.starts_with(b"/*") {
            let close = find(at + 2, b"*/").ok_or_else(|| Error::Open {
                line: line(text, at),
                what: "comment",
            })?;
            (close + 2, Some(at + 2..close))
        } else if rest.starts_with(b"\"") {
            let close = find(at + 1, b"\"").ok_or_else(|| Error::Open {
                line: line(text, at),
                what: "string",
            })?;
            (close + 1, None)
        } else {
            at += 1;
            continue;
        };
        if let Some(inside) = inside {
            comments.push((at, text[inside].trim().to_owned()));
        }
        blank(at..end);
        at = end;
    }
    // Whole characters were blanked, bytes outside stayed: still UTF-8.
    Ok((String::from_utf8_lossy(&masked).into_owned(), comments))
}

fn words(masked: &str, range: Range<usize>) -> impl Iterator<Item = Word<'_>> {
    let bytes = &masked.as_bytes()[..range.end];
    let mut at = range.start;
    std::iter::from_fn(move || {
        // How many bytes of a word stand here.
        let inside = |at: usize| match &bytes[at..] {
            [b':', b':', ..] => 2,
            [byte, ..] if byte.is_ascii_alphanumeric() || b"_$%.".contains(byte) => 1,
            _ => 0,
        };
        while at < bytes.len() && inside(at) == 0 {
            at += 1;
        }
        let start = at;
        while inside(at) > 0 {
            at += inside(at);
        }
        (at > start).then(|| Word {
            at: start,
            text: &masked[start..at],
        })
    })
}

/// `.entry`, also where nothing stands between it and its linkage: `.visible.entry`.
fn is_entry(word: &Word) -> bool {
    word.text.starts_with('.') && word.text.ends_with(".entry")
}

/// The entry that a `.entry` begins; `None` for a mere declaration.
fn entry(text: &str, masked: &str, keyword: Word) -> Result<Option<Entry>, Error> {
    let at = keyword.at;
    let wrong = |at: usize, what: &str| Error::Entry {
        line: line(text, at),
        what: what.into(),
    };
    let bytes = masked.as_bytes();
    let name = words(masked, keyword.end()..masked.len())
        .next()
        .ok_or_else(|| wrong(at, ".entry has no name"))?;
    let mut cursor = name.end();
    let next = |from: usize, wanted: &[u8]| {
        bytes[from..]
            .iter()
            .position(|byte| wanted.contains(byte))
            .map(|found| from + found)
    };
    let ends = |at: usize| wrong(at, "the entry has neither a body nor a semicolon");
    let mut params = Vec::new();
    let open = next(cursor, b"({;").ok_or_else(|| ends(at))?;
    if bytes[open] == b'(' {
        let close = next(open, b")").ok_or_else(|| wrong(open, "the parameter list never ends"))?;
        params = parameters(text, masked, open + 1..close)?;
        cursor = close + 1;
    }
    let brace = next(cursor, b"{;").ok_or_else(|| ends(at))?;
    if bytes[brace] == b';' {
        return Ok(None);
    }
    let mut depth = 0usize;
    for (offset, byte) in bytes[brace..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            let body = brace..brace + offset + 1;
            let name = name.text.to_owned();
            return Ok(Some(Entry {
                name,
                at,
                params,
                directives: cursor..brace,
                body,
            }));
        }
    }
    Err(wrong(brace, "the body of this entry never ends"))
}

fn parameters(text: &str, masked: &str, range: Range<usize>) -> Result<Vec<ParamDecl>, Error> {
    let mut params = Vec::new();
    let mut start = range.start;
    for part in masked[range].split(',') {
        let span = start..start + part.len();
        start = span.end + 1;
        if !part.trim().is_empty() {
            params.push(parameter(text, masked, span)?);
        }
    }
    Ok(params)
}

/// `.param .align 16 .b8 name[128]`, `.param .u64 .ptr .global .align 1 name`, `.param.b32 name`.
fn parameter(text: &str, masked: &str, span: Range<usize>) -> Result<ParamDecl, Error> {
    let wrong = |what: &str| Error::Entry {
        line: line(text, span.start),
        what: what.into(),
    };
    let list: Vec<Word> = words(masked, span.clone()).flat_map(unglued).collect();
    let keyword = list
        .iter()
        .find(|word| word.text == ".param")
        .ok_or_else(|| wrong("a parameter without .param"))?;
    let mut element = None;
    let mut align = None;
    let mut pointee = false;
    let mut name: Option<&Word> = None;
    let mut count: Option<u64> = None;
    let mut list_left = list.iter();
    while let Some(word) = list_left.next() {
        match word.text {
            ".ptr" => pointee = true,
            ".align" => {
                let number = list_left
                    .next()
                    .ok_or_else(|| wrong(".align without a number"))?;
                // After .ptr it is the alignment of what the pointer points to.
                if !pointee {
                    align = Some(number.at..number.end());
                }
            }
            text if text.starts_with('.') => element = element.or(scalar_size(text)),
            number if name.is_some() => {
                let number = integer(number).ok_or_else(|| wrong("an array size"))?;
                count = Some(count.unwrap_or(1).saturating_mul(number));
            }
            _ => name = Some(word),
        }
    }
    let name = name.ok_or_else(|| wrong("a parameter without a name"))?;
    let element = element.ok_or_else(|| wrong("a parameter of unknown type"))?;
    Ok(ParamDecl {
        name: name.text.to_owned(),
        size: element.saturating_mul(count.unwrap_or(1)),
        align,
        after_param: keyword.end(),
    })
}

/// `.param` and `.b32` of `.param.b32`.
fn unglued(word: Word<'_>) -> impl Iterator<Item = Word<'_>> {
    let starts = word.text.match_indices('.').map(|(dot, _)| dot);
    let starts: Vec<usize> = std::iter::once(0)
        .chain(starts.filter(|&dot| dot > 0))
        .chain([word.text.len()])
        .collect();
    (1..starts.len()).map(move |part| Word {
        at: word.at + starts[part - 1],
        text: &word.text[starts[part - 1]..starts[part]],
    })
}

/// A number as PTX writes it: decimal, `0x` hexadecimal, `0b` binary or `0` octal,
/// with or without a `U` behind it (PTX ISA, "Integer Constants").
pub(crate) fn integer(word: &str) -> Option<u64> {
    let lower = word.to_ascii_lowercase();
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x', ..] => (&digits[2..], 16),
        [b'0', b'b', ..] => (&digits[2..], 2),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

fn scalar_size(word: &str) -> Option<u64> {
    // A handle, in the ABI.
    if [".texref", ".surfref", ".samplerref"].contains(&word) {
        return Some(8);
    }
    let digits = word.strip_prefix('.')?.strip_prefix(['b', 'u', 's', 'f'])?;
    digits
        .parse::<u64>()
        .ok()
        .filter(|bits| [8, 16, 32, 64, 128].contains(bits))
        .map(|b| b / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// made by hand { \n.version 8.4\n.target sm_90a, debug\n\
        .address_size 64\n/* .entry no( */\n.file 1 \"a//b{\"\n\
        .visible .entry first(\n\t.param .align 16 .b8 first_param_0[128], // map\n\
        \t.param .u64 .ptr .global .align 4 first_param_1,\n\t.param .f32 first_param_2\n)\n\
        .maxntid 3\n{\n\t// @collective a.rs:1:2\n\t{ .reg .b32 %r; }\n\tret;\n}\n\
        .weak .entry second()\n{ ret; }\n.entry third\n{ ret; }\n";

    #[test]
    fn structure() {
        let module = Module::scan(TEXT).unwrap();
        assert_eq!(
            (module.version.as_str(), module.target.as_str()),
            ("8.4", "sm_90a")
        );
        let names: Vec<_> = module
            .entries
            .iter()
            .map(|entry| entry.name.as_str())
            .collect();
        assert_eq!(names, ["first", "second", "third"]);
        let first = &module.entries[0];
        let sizes: Vec<_> = first.params.iter().map(|param| param.size).collect();
        assert_eq!(sizes, [128, 8, 4]);
        assert_eq!(&TEXT[first.params[0].align.clone().unwrap()], "16");
        assert_eq!(first.params[1].align, None);
        assert_eq!(TEXT[first.directives.clone()].trim(), ".maxntid 3");
        let tags: Vec<_> = module.comments(first.body.clone()).collect();
        assert_eq!(tags.len(), 1);
        assert_eq!(
            (tags[0].1, module.line(tags[0].0)),
            ("@collective a.rs:1:2", 14)
        );
        let words: Vec<_> = module
            .words(first.body.clone())
            .map(|word| word.text)
            .collect();
        assert_eq!(words, [".reg", ".b32", "%r", "ret"]);
    }

    #[test]
    fn words_that_stand_close() {
        let text = ".version 9.0\n.target sm_90a\n\
            .visible.entry f(.param.align 8.b8 a[0x10],.param.u64 b,.param .texref c){\
            again:call.uni g; ld.shared::cta.u32 %r1,[x]; @%p1 bra again;}";
        let module = Module::scan(text).unwrap();
        let [entry] = &module.entries[..] else {
            panic!("one entry: {module:?}")
        };
        let sizes: Vec<_> = entry.params.iter().map(|param| param.size).collect();
        assert_eq!((entry.name.as_str(), &sizes[..]), ("f", &[16, 8, 8][..]));
        assert_eq!(&text[entry.params[0].align.clone().unwrap()], "8");
        let words: Vec<_> = module
            .words(entry.body.clone())
            .map(|word| word.text)
            .collect();
        let expected = [
            "again",
            "call.uni",
            "g",
            "ld.shared::cta.u32",
            "%r1",
            "x",
            "%p1",
            "bra",
            "again",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn integers() {
        for (word, value) in [
            ("128", 128),
            ("0x80", 128),
            ("0200U", 128),
            ("0b101", 5),
            ("0", 0),
        ] {
            assert_eq!(integer(word), Some(value), "{word}");
        }
        assert_eq!(integer("0x"), None);
        assert_eq!(integer("four"), None);
    }

    #[test]
    fn what_is_not_ptx() {
        assert_eq!(Module::scan("\u{7f}ELF").unwrap_err(), Error::NoVersion);
        assert_eq!(Module::scan("").unwrap_err(), Error::NoVersion);
        assert_eq!(Module::scan(".version 8.4\n").unwrap_err(), Error::NoTarget);
        let open = Module::scan("\n/* no end").unwrap_err();
        assert_eq!(
            open,
            Error::Open {
                line: 2,
                what: "comment"
            }
        );
        for text in [
            ".entry",
            ".entry f",
            ".entry f(",
            ".entry f(.param)",
            ".entry f() {{}",
        ] {
            let text = format!(".version 8.4\n.target sm_90a\n{text}");
            assert!(
                matches!(Module::scan(&text), Err(Error::Entry { line: 3, .. })),
                "{text}"
            );
        }
        let declared = Module::scan(".version 8.4\n.target sm_90a\n.entry f();\n").unwrap();
        assert!(declared.entries.is_empty());
    }
}
