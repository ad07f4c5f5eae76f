SELECT
  *,
  MD5(
    CONCAT_WS(
      '␟',
      offer_id,
      COALESCE(shop_id, '␀'),
      COALESCE(language, '␀'),
      COALESCE(title, '␀'),
      COALESCE(description, '␀'),
      COALESCE(category_path, '␀'),
      COALESCE(brand, '␀'),
      COALESCE(label, '␀'),
      COALESCE(subcategory, '␀'),
      COALESCE(cluster, '␀'),
      COALESCE(source, '␀')
    )
  ) AS row_id
FROM files
