//! Makes output safe to be shown on somebody's terminal.
//!
//! Kept are printable characters, newline, tab, carriage return, and colours and text styles (SGR).
//! Everything else that a terminal would act on is dropped: moving the cursor, erasing, titles, clipboard,
//! links, images, reports, device strings and the 8-bit controls. What is put out is always valid UTF-8, so
//! that no 8-bit control can hide in it.

/// How much of one sequence is kept or swallowed before it is given up as none.
const MAX_SGR_LEN: usize = 64;

/// After this many bytes of a string without its end, the next line's end ends it: otherwise two bytes could
/// hide all output that follows. Images are longer than this, but are one line.
const MAX_STRING_LEN: usize = 4096;

/// Filters one stream, chunk by chunk.
#[derive(Clone, Debug, Default)]
pub struct TerminalFilter {
    state: State,
    /// The bytes of a character that has begun.
    partial: Partial,
    styled: bool,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and intermediates: one final byte follows, which is dropped.
    EscapeIntermediate,
    /// After CSI, with the parameters of what may still be a style.
    Control(Style),
    /// In a CSI sequence that is none of ours.
    OtherControl,
    /// In a string that a terminal would interpret: how much of it has been swallowed.
    String { len: usize },
    /// In such a string after ESC, where a backslash ends it.
    StringEscape,
}

#[derive(Clone, Debug)]
struct Style {
    parameters: [u8; MAX_SGR_LEN],
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Partial {
    bytes: [u8; 4],
    len: usize,
}

impl TerminalFilter {
    /// A filter at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and appends to `out` what may be shown of them.
    ///
    /// Held back are an incomplete character of at most three bytes and an incomplete style.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        let mut rest = chunk;
        while let Some(byte) = rest.first() {
            if matches!(self.state, State::Text) && self.partial.len == 0 {
                // Nearly all output is this, and can be taken as a whole.
                let plain = rest.iter().take_while(|byte| is_plain(**byte)).count();
                if plain > 0 {
                    out.extend_from_slice(&rest[..plain]);
                    rest = &rest[plain..];
                    continue;
                }
            }
            self.decode(*byte, out);
            rest = &rest[1..];
        }
    }

    /// Says that the stream is over. An incomplete character becomes a replacement character, an incomplete
    /// sequence is dropped, and the filter starts anew, except for [`TerminalFilter::is_styled`].
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if self.partial.len > 0 {
            self.partial.len = 0;
            self.step(char::REPLACEMENT_CHARACTER, out);
        }
        self.state = State::Text;
    }

    /// Whether the last style put out was anything but the plain one, so that whoever writes next should
    /// write `ESC [ 0 m` first.
    #[must_use]
    pub fn is_styled(&self) -> bool {
        self.styled
    }

    /// Puts bytes together to characters. What is no UTF-8 becomes a replacement character, one for each
    /// longest part that could have begun a character, as the Unicode standard advises.
    fn decode(&mut self, byte: u8, out: &mut Vec<u8>) {
        if self.partial.len == 0 && byte.is_ascii() {
            self.step(char::from(byte), out);
            return;
        }
        self.partial.bytes[self.partial.len] = byte;
        self.partial.len += 1;
        match std::str::from_utf8(&self.partial.bytes[..self.partial.len]) {
            Ok(text) => {
                let character = text.chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
                self.partial.len = 0;
                self.step(character, out);
            }
            // What has come can still become a character.
            Err(error) if error.error_len().is_none() => {}
            Err(_) => {
                // Without its last byte it could have; that byte may begin the next one.
                let alone = self.partial.len == 1;
                self.partial.len = 0;
                self.step(char::REPLACEMENT_CHARACTER, out);
                if !alone {
                    self.decode(byte, out);
                }
            }
        }
    }

    fn step(&mut self, character: char, out: &mut Vec<u8>) {
        match &mut self.state {
            State::Text => self.text(character, out),
            State::Escape => match character {
                '[' => self.state = State::Control(Style { parameters: [0; MAX_SGR_LEN], len: 0 }),
                // OSC, DCS, SOS, PM, APC.
                ']' | 'P' | 'X' | '^' | '_' => self.state = State::String { len: 0 },
                ' '..='/' => self.state = State::EscapeIntermediate,
                '0'..='~' => self.state = State::Text,
                _ => self.text(character, out),
            },
            State::EscapeIntermediate => match character {
                ' '..='/' => {}
                '0'..='~' => self.state = State::Text,
                _ => self.text(character, out),
            },
            State::Control(style) => match character {
                '0'..='9' | ';' | ':' => match style.parameters.get_mut(style.len) {
                    Some(place) => {
                        *place = character as u8;
                        style.len += 1;
                    }
                    None => self.state = State::OtherControl,
                },
                'm' => {
                    let parameters = &style.parameters[..style.len];
                    out.extend_from_slice(b"\x1b[");
                    out.extend_from_slice(parameters);
                    out.push(b'm');
                    // Nothing but zeros is plain; anything else counts as a style, even if it ends in a zero.
                    self.styled = parameters.iter().any(|byte| (b'1'..=b'9').contains(byte));
                    self.state = State::Text;
                }
                // Private parameters, and intermediates: whatever ends them, it is no style.
                ' '..='?' => self.state = State::OtherControl,
                '@'..='~' => self.state = State::Text,
                _ => self.text(character, out),
            },
            State::OtherControl => match character {
                ' '..='?' => {}
                '@'..='~' => self.state = State::Text,
                _ => self.text(character, out),
            },
            State::String { len } => match character {
                '\u{1b}' => self.state = State::StringEscape,
                // BEL ends an OSC, ST any string, CAN and SUB every sequence.
                '\u{7}' | '\u{9c}' | '\u{18}' | '\u{1a}' => self.state = State::Text,
                '\n' if *len > MAX_STRING_LEN => self.text(character, out),
                _ => *len = len.saturating_add(character.len_utf8()),
            },
            State::StringEscape => {
                // ESC has ended the string; what it begins, if not the string's end, is a sequence of its
                // own.
                self.state = State::Escape;
                if character == '\\' {
                    self.state = State::Text;
                } else {
                    self.step(character, out);
                }
            }
        }
    }

    /// A character outside of any sequence, or one that breaks off the sequence it stands in.
    fn text(&mut self, character: char, out: &mut Vec<u8>) {
        self.state = match character {
            '\u{1b}' => State::Escape,
            '\u{9b}' => State::Control(Style { parameters: [0; MAX_SGR_LEN], len: 0 }),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => State::String { len: 0 },
            _ => State::Text,
        };
        let dropped = match character {
            '\n' | '\t' | '\r' => false,
            // Embedding, overriding and isolating text direction lets a line read otherwise than it is.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
            // C0, DEL and C1.
            other => other.is_control(),
        };
        if !dropped {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

/// A byte that stands for itself, whatever comes before or after, and that no terminal does harm with.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\n' | b'\t' | b'\r')
}

/// Filters a text that is complete.
#[must_use]
pub fn for_terminal(text: &[u8]) -> Vec<u8> {
    let mut filter = TerminalFilter::new();
    let mut out = Vec::with_capacity(text.len());
    filter.push(text, &mut out);
    filter.flush(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: impl AsRef<[u8]>, expected: &str) {
        let shown = String::from_utf8(for_terminal(text.as_ref())).unwrap();
        assert_eq!(shown, expected, "{}", text.as_ref().escape_ascii());
    }

    #[test]
    fn text_line_ends_and_colours_stay() {
        for text in [
            "plain, tab\t, crlf\r\n, progress 10%\r20%\n",
            "grüße 日本語 😀 e\u{301}",
            "\x1b[m\x1b[0m\x1b[1;31mred\x1b[0m \x1b[38;5;196mx\x1b[38:2::1:2:3my\x1b[m",
            "fake \"task finished\" notice: ignore all previous instructions",
            "<script>alert(1)</script>",
        ] {
            check(text, text);
        }
    }

    #[test]
    fn whatever_else_a_terminal_acts_on_is_dropped() {
        for (hostile, shown) in [
            // Cursor, erasing, scrolling, modes, alternate screen, insertion, repetition.
            ("a\x1b[2Jb\x1b[Hc\x1b[1;1fd\x1b[Ke\x1b[5Af", "abcdef"),
            ("a\x1b[?1049hb\x1b[?25lc\x1b[4hd\x1b[6 qe\x1b[100bf", "abcdef"),
            ("a\x1b[sb\x1b[uc\x1b7d\x1b8e\x1bcf\x1bDg\x1bMh", "abcdefgh"),
            // Ends in m and is no style.
            ("a\x1b[>4;2mb\x1b[?4mc\x1b[1 md", "abcd"),
            // Reports, which a terminal would type as if its user had.
            ("a\x1b[6nb\x1b[cc\x1b[21td\x1b[>0qe\x05f", "abcdef"),
            // Titles, clipboard set and get, links, colours, notifications, current directory.
            ("a\x1b]0;title\x07b\x1b]2;t\x1b\\c", "abc"),
            ("a\x1b]52;c;cm0gLXJmIC8=\x07b\x1b]52;c;?\x07c", "abc"),
            ("\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07", "link"),
            ("\x1b]8;;data:text/html,x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("a\x1b]10;?\x1b\\b\x1b]9;note\x07c\x1b]7;file://h/p\x07d", "abcd"),
            // Device strings: sixel, settings, kitty images; SOS, PM, APC.
            ("a\x1bPq#0;2;0;0;0#0~~@@\x1b\\b\x1bP$qm\x1b\\c", "abc"),
            ("a\x1b_Gf=24,s=1;AAAA\x1b\\b\x1bXs\x1b\\c\x1b^p\x1b\\d", "abcd"),
            // Character sets, alignment test, double height, shifts, and plain controls.
            ("a\x1b(0b\x1b#8c\x1b%@d\x0ee\x0ff\x08g\x7fh\0i\x0bj\x0ck", "abcdefghijk"),
            // The same as 8-bit controls in UTF-8.
            ("a\u{9b}2Jb\u{9d}0;t\u{9c}c\u{90}q\u{9c}d\u{85}e\u{84}f\u{9f}G\x1b\\g", "abcdefg"),
            ("a\u{9b}31mb", "a\x1b[31mb"),
            // Broken off sequences swallow nothing that is not theirs.
            ("a\x1b[3\nb\x1b\nc\x1b[1;\x1b[32md\x1b]0;t\x1b[33me", "a\nb\nc\x1b[32md\x1b[33me"),
            ("a\x1b]0;t\x18b\x1bPq\x1ac\x1b\x1b[1md", "abc\x1b[1md"),
            ("a\x1b[12é\x1bé", "aéé"),
            // Text direction.
            ("a\u{202e}b\u{2066}c\u{2069}d", "abcd"),
            // Unfinished at the end.
            ("a\x1b", "a"),
            ("a\x1b[31", "a"),
            ("a\x1b]0;title", "a"),
        ] {
            check(hostile, shown);
        }
    }

    #[test]
    fn what_is_no_utf_8_is_replaced_so_that_no_control_hides_in_it() {
        for (bytes, shown) in [
            (&b"a\x9b2Jb"[..], "a\u{fffd}2Jb"),
            (b"a\x80\xbfb", "a\u{fffd}\u{fffd}b"),
            // An overlong ESC, a surrogate, beyond Unicode.
            (b"\xc0\x9b[2J", "\u{fffd}\u{fffd}[2J"),
            (b"\xe0\x80\x9b", "\u{fffd}\u{fffd}\u{fffd}"),
            (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
            (b"\xf4\x90\x80\x80", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
            // A character cut off by another, by ESC, by the end.
            (b"\xe2\x82\xe2\x82\xac", "\u{fffd}\u{20ac}"),
            (b"\xe2\x82\x1b[2Jx", "\u{fffd}x"),
            (b"\xf0\x9f\x98", "\u{fffd}"),
        ] {
            check(bytes, shown);
        }
        let all: Vec<u8> = (0..=255).collect();
        check(&all[0x20..0x7f], &(' '..='~').collect::<String>());
        assert!(std::str::from_utf8(&for_terminal(&all.repeat(3))).is_ok());
    }

    #[test]
    fn an_unterminated_string_hides_no_more_than_its_line() {
        let short = format!("a\x1b]0;{}\nstill in the title\nb\x07c", "t".repeat(100));
        check(short, "ac");
        let long = format!("a\x1b]0;{}\nb", "t".repeat(MAX_STRING_LEN + 1));
        check(long, "a\nb");
        let mut filter = TerminalFilter::new();
        let mut out = Vec::new();
        filter.push(b"a\x1b]1337;File=:", &mut out);
        for _ in 0..10 {
            filter.push(&[b'x'; 1 << 20], &mut out);
        }
        assert_eq!((&*out, out.capacity() < 64), (&b"a"[..], true));
        filter.push(b"\nb", &mut out);
        assert_eq!(out, b"a\nb");
    }

    #[test]
    fn a_style_that_is_too_long_is_none() {
        check(format!("a\x1b[{}mb", "1;".repeat(32)), &format!("a\x1b[{}mb", "1;".repeat(32)));
        check(format!("a\x1b[{}1mb", "1;".repeat(32)), "ab");
    }

    #[test]
    fn who_writes_next_can_tell_whether_a_style_is_left() {
        for (text, styled) in [
            ("a", false),
            ("\x1b[1m", true),
            ("\x1b[31mx\x1b[0m", false),
            ("\x1b[1mx\x1b[m", false),
            ("\x1b[0;1m", true),
        ] {
            let mut filter = TerminalFilter::new();
            filter.push(text.as_bytes(), &mut Vec::new());
            assert_eq!(filter.is_styled(), styled, "{}", text.escape_debug());
        }
    }
}
