/*
 * text.h: a program's bytes, made into text that a server takes.
 */
#ifndef IDEMQ_WORK_TEXT_H
#define IDEMQ_WORK_TEXT_H

#include <stddef.h>

/* In place, of text with room for a NUL: valid UTF-8 without NUL; white space at its end goes. */
extern void text_clean(char *text, size_t size);

/* In place: ASCII alone, for a server whose encoding lacks a character. */
extern void text_to_ascii(char *text);

/* A new array literal: {"a","b"}. */
extern char *text_array(const char *const *values, int count);

#endif
