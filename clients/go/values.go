package idemq

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxJSON is the largest value of idemq.max_document in bytes.
const maxJSON = 64 << 20

// encode returns a value as JSON text.
func encode(value any, what string) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("%s cannot be encoded as JSON: %w", what, err)
	}
	if len(text) > maxJSON {
		return "", fmt.Errorf("%s has %d bytes as JSON, which is more than any server accepts; pass a reference to it instead", what, len(text))
	}
	return string(text), nil
}

// encodeResult is like encode, but returns nil for a value without content.
func encodeResult(value any, what string) (*string, error) {
	if _, none := value.(struct{}); none || value == nil {
		return nil, nil
	}
	text, err := encode(value, what)
	if err != nil || text == "null" {
		return nil, err
	}
	return &text, nil
}

// decode reads JSON.  Numbers in interfaces keep all their digits.
func decode(text []byte, dest any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(dest)
}

// interval returns a duration as PostgreSQL reads it under every setting.
func interval(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(float64(d)/float64(time.Microsecond))), 10) + " microseconds"
}

// given returns a value, or nil if it is the zero value, which means that the caller has not given it.
func given[T comparable](value T) any {
	var zero T
	if value == zero {
		return nil
	}
	return value
}

// givenText is like given, for a text that may be empty.
func givenText(text *string) any {
	if text == nil {
		return nil
	}
	return *text
}

// givenInterval is like given, for durations.
func givenInterval(d time.Duration) any {
	if d == 0 {
		return nil
	}
	return interval(d)
}

// givenTime is like given, for times.
func givenTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02 15:04:05.999999999Z07:00")
}

// deref returns what a pointer points to, or the zero value.
func deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// array returns the text of a PostgreSQL array.  Arrays are passed as text, because not every driver of database/sql knows them.
func array[T any](values []T, of func(T) any) string {
	texts := make([]string, len(values))
	for n, value := range values {
		switch v := of(value).(type) {
		case nil:
			texts[n] = "NULL"
		case string:
			texts[n] = `"` + quoted.Replace(v) + `"`
		default:
			texts[n] = fmt.Sprint(v)
		}
	}
	return "{" + strings.Join(texts, ",") + "}"
}

var quoted = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// numbers returns the text of an array of integers.
func numbers[T int32 | int64](values []T) string { return array(values, func(v T) any { return v }) }

// raw returns JSON that the server has sent, or nil.
func raw(text *string) json.RawMessage {
	if text == nil {
		return nil
	}
	return json.RawMessage(*text)
}
