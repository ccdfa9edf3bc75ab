/*
 * text.h: a program's bytes, made into text that a server takes.
 */
#ifndef IDEMQ_WORK_TEXT_H
#define IDEMQ_WORK_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In place, of text with room for a NUL: valid UTF-8 without NUL; white space at its end goes. */
extern void text_clean(char *text, size_t size);

/* A new text: the beginning of one, valid, to be shown in a message. */
extern char *text_excerpt(const char *text);

/* A new text: JSON without what no text in the server can hold, such as \u0000. */
extern char *text_clean_json(const char *json);

/* In place: ASCII alone, for a server whose encoding lacks a character. */
extern void text_to_ascii(char *text);

/* A new text: JSON in ASCII, where it was in UTF-8. */
extern char *text_json_ascii(const char *json);

/* Milliseconds of "500ms", "10s", "5min", "2h", "1d", seconds without a unit; false: it is none. */
extern bool text_time(const char *text, int64_t *ms);

/* A new array literal: {"a","b",NULL}. */
extern char *text_array(const char *const *values, int count);

#endif
