package main

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"slices"
)

// smaller is a PNG with 256 colors: the most frequent ones, and for each other the nearest of them. A page has few colors,
// and the edges of its letters do not show it.
func smaller(picture []byte) ([]byte, error) {
	m, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	b := m.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(m.At(x, y)).(color.RGBA) }
	count := map[color.RGBA]int{}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(rank(a), rank(b)))
	})
	// One of a kind in a neighborhood is enough, but for the most frequent ones, which are meant.
	var palette color.Palette
	taken := map[uint32]bool{}
	for i, c := range frequent {
		if near := rank(color.RGBA{c.R &^ 15, c.G &^ 15, c.B &^ 15, 255}); i < 48 || !taken[near] {
			taken[near] = true
			palette = append(palette, c)
		}
		if len(palette) == 256 {
			break
		}
	}
	nearest := map[color.RGBA]uint8{}
	for c := range count {
		nearest[c] = uint8(palette.Index(c))
	}
	small := image.NewPaletted(b, palette)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			small.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	err = encoder.Encode(&out, small)
	return out.Bytes(), err
}

func rank(c color.RGBA) uint32 { return uint32(c.R)<<16 | uint32(c.G)<<8 | uint32(c.B) }
