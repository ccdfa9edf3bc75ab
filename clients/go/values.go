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

// decodeResult returns a result, or nil if there is none.
func decodeResult[R any](text *string) (*R, error) {
	if text == nil {
		return nil, nil
	}
	result := new(R)
	if err := decode([]byte(*text), result); err != nil {
		return nil, fmt.Errorf("the result cannot be decoded: %w", err)
	}
	return result, nil
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

// or returns a value, or another one if it is the zero value.
func or[T comparable](value, other T) T {
	var zero T
	if value == zero {
		return other
	}
	return value
}

// array returns the text of a PostgreSQL array.  Arrays are passed as text, because not every driver of database/sql knows them.
func array[T any](values []T, text func(T) any) string {
	var b strings.Builder
	b.WriteByte('{')
	for n, value := range values {
		if n > 0 {
			b.WriteByte(',')
		}
		switch v := text(value).(type) {
		case nil:
			b.WriteString("NULL")
		case *string:
			if v == nil {
				b.WriteString("NULL")
			} else {
				quote(&b, *v)
			}
		case string:
			quote(&b, v)
		default:
			fmt.Fprint(&b, v)
		}
	}
	b.WriteByte('}')
	return b.String()
}

func quote(b *strings.Builder, text string) {
	b.WriteByte('"')
	for n := 0; n < len(text); n++ {
		if text[n] == '"' || text[n] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(text[n])
	}
	b.WriteByte('"')
}

// numbers returns the text of an array of integers.
func numbers[T int32 | int64](values []T) string { return array(values, func(v T) any { return v }) }

// fromMicros returns the time that the server has sent as microseconds.
func fromMicros(micros *int64) time.Time {
	if micros == nil {
		return time.Time{}
	}
	return time.UnixMicro(*micros)
}
