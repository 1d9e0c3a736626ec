"""Plans the library makes for itself: as the cascade's recorder makes them, kept in packs and in a cache, refused when damaged."""
